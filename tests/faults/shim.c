/* Makes the n-th call below a folder that changes the disk fail, in a real process (LD_PRELOAD): write, rename,
 * truncate, allocation, sync, mkdir, and open where it may create the file; if asked, also unlink and rmdir.
 *
 * AIB_FAULT_DIR    the folder; paths are those the kernel knows, so it must be absolute and free of links
 * AIB_FAULT_N      which call fails, from 1; 0 or absent: none
 * AIB_FAULT_ERRNO  its errno (5 is EIO, 28 ENOSPC)
 * AIB_FAULT_STICKY 1: every later call fails too, as on a disk that has died or stays full
 * AIB_FAULT_REMOVALS 1: removals count and fail too; a disk that is merely full lets files be removed
 * AIB_FAULT_MARK   a file that is created when the fault fires
 * AIB_FAULT_LOG    a file that gets a line for each call that is counted: process, number, call, path
 *
 * A process that drives many faults itself calls aib_fault_arm() and aib_fault_count() through ctypes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static size_t folder_length;
static const char *mark;
static const char *log_file;
static long fail_at;
static long seen;
static int fail_errno = EIO;
static int sticky;
static int removals;

void aib_fault_arm(long n, int error, int is_sticky)
{
    seen = 0;
    fail_at = n;
    fail_errno = error;
    sticky = is_sticky;
}

long aib_fault_count(void)
{
    return seen;
}

__attribute__((constructor)) static void start(void)
{
    const char *dir = getenv("AIB_FAULT_DIR");
    const char *n = getenv("AIB_FAULT_N"), *error = getenv("AIB_FAULT_ERRNO"), *is_sticky = getenv("AIB_FAULT_STICKY");
    if (dir != NULL && strlen(dir) < sizeof folder) {
        strcpy(folder, dir);
        folder_length = strlen(folder);
    }
    mark = getenv("AIB_FAULT_MARK");
    log_file = getenv("AIB_FAULT_LOG");
    removals = getenv("AIB_FAULT_REMOVALS") != NULL;
    aib_fault_arm(n ? atol(n) : 0, error ? atoi(error) : EIO, is_sticky ? atoi(is_sticky) : 0);
}

static int below(const char *path)
{
    return folder_length > 0 && strncmp(path, folder, folder_length) == 0
        && (path[folder_length] == '/' || path[folder_length] == '\0');
}

static void note(const char *file, const char *text, size_t size)
{
    long descriptor = syscall(SYS_openat, AT_FDCWD, file, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    if (descriptor < 0)
        return;
    syscall(SYS_write, descriptor, text, size);
    syscall(SYS_close, descriptor);
}

static int fires(const char *call, const char *path)
{
    long now = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    if (log_file != NULL) {
        char line[PATH_MAX + 80];
        int size = snprintf(line, sizeof line, "%d %ld %s %s\n", (int)getpid(), now, call, path);
        note(log_file, line, (size_t)size);
    }
    if (fail_at == 0 || !(now == fail_at || (sticky && now > fail_at)))
        return 0;
    if (mark != NULL)
        note(mark, "", 0);
    errno = fail_errno;
    return 1;
}

static int fires_for(const char *call, int descriptor)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    int saved = errno;
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length < 0)
        return 0;
    path[length] = '\0';
    return below(path) && fires(call, path);
}

/* Relative names are not looked at: the program under test uses absolute ones. */
static int fires_at(const char *call, const char *path)
{
    return below(path) && fires(call, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size)
{
    return fires_for(__func__, fd) ? -1 : REAL(write)(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    return fires_for(__func__, fd) ? -1 : REAL(writev)(fd, parts, count);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    return fires_for(__func__, fd) ? -1 : REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    return fires_for(__func__, fd) ? -1 : REAL(pwrite64)(fd, data, size, at);
}

int fsync(int fd)
{
    return fires_for(__func__, fd) ? -1 : REAL(fsync)(fd);
}

int fdatasync(int fd)
{
    return fires_for(__func__, fd) ? -1 : REAL(fdatasync)(fd);
}

int ftruncate(int fd, off_t size)
{
    return fires_for(__func__, fd) ? -1 : REAL(ftruncate)(fd, size);
}

int ftruncate64(int fd, off64_t size)
{
    return fires_for(__func__, fd) ? -1 : REAL(ftruncate64)(fd, size);
}

int truncate(const char *path, off_t size)
{
    return fires_at(__func__, path) ? -1 : REAL(truncate)(path, size);
}

int truncate64(const char *path, off64_t size)
{
    return fires_at(__func__, path) ? -1 : REAL(truncate64)(path, size);
}

/* These two return the error instead of setting errno. */
int posix_fallocate(int fd, off_t at, off_t size)
{
    return fires_for(__func__, fd) ? fail_errno : REAL(posix_fallocate)(fd, at, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size)
{
    return fires_for(__func__, fd) ? fail_errno : REAL(posix_fallocate64)(fd, at, size);
}

int rename(const char *from, const char *to)
{
    return fires_at(__func__, to) ? -1 : REAL(rename)(from, to);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return fires_at(__func__, to) ? -1 : REAL(renameat)(from_fd, from, to_fd, to);
}

int mkdir(const char *path, mode_t mode)
{
    return fires_at(__func__, path) ? -1 : REAL(mkdir)(path, mode);
}

int mkdirat(int folder_fd, const char *path, mode_t mode)
{
    return fires_at(__func__, path) ? -1 : REAL(mkdirat)(folder_fd, path, mode);
}

int unlink(const char *path)
{
    return removals && fires_at(__func__, path) ? -1 : REAL(unlink)(path);
}

/* A name relative to a folder is how trees are removed, so here the folder's own path counts too. */
int unlinkat(int folder_fd, const char *path, int flags)
{
    int absolute = path[0] == '/' || folder_fd == AT_FDCWD;
    int fired = removals && (absolute ? fires_at(__func__, path) : fires_for(__func__, folder_fd));
    return fired ? -1 : REAL(unlinkat)(folder_fd, path, flags);
}

int rmdir(const char *path)
{
    return removals && fires_at(__func__, path) ? -1 : REAL(rmdir)(path);
}

/* Only an open that may create a file counts, and only then is there a mode. */
#define OPEN(...) \
    mode_t mode = 0; \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
        if (fires_at(__func__, path)) \
            return -1; \
    } \
    return __VA_ARGS__

int open(const char *path, int flags, ...)
{
    OPEN(REAL(open)(path, flags, mode));
}

int open64(const char *path, int flags, ...)
{
    OPEN(REAL(open64)(path, flags, mode));
}

int openat(int folder_fd, const char *path, int flags, ...)
{
    OPEN(REAL(openat)(folder_fd, path, flags, mode));
}

int openat64(int folder_fd, const char *path, int flags, ...)
{
    OPEN(REAL(openat64)(folder_fd, path, flags, mode));
}
