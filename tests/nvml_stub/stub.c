/* A stand-in for libnvidia-ml.so.1 that answers from a state file, which a test may replace while it is read.
 *
 * Each line is `KEY VALUE`. Keys: count, driver, nvml, cuda (of the node); N.<what> for device N, where <what> is the
 * name of the getter without nvmlDeviceGet and with its arguments: "0.Temperature(0,) 30", "0.MemoryInfo.used 1";
 * field values are "0.field.186.ret|type|ull". What has no value is "Not Supported". Faults: "FUNCTION.return CODE",
 * "N.FUNCTION.return CODE", "….hang 1" (for ever), "….crash 1", "….slow MILLISECONDS"; "N.lost 1" (every call of the
 * device answers GPU_IS_LOST); "noise 1" (the library prints to stdout). Values end at the line's end, so they may
 * hold anything but a newline.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, LOST = 15 };
enum { DEVICES = 16, ENTRIES = 4096 };

typedef int nvmlReturn_t;
typedef struct device { int index; int is_mig; } *nvmlDevice_t;
typedef unsigned long long u64;

static struct device devices[DEVICES], mig_devices[DEVICES];
static struct { char key[96]; char value[256]; } entries[ENTRIES];
static int entry_count;
static struct stat loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void load(void)
{
    const char *path = getenv("NVML_STUB_STATE");
    struct stat now;
    char line[400];
    FILE *file;

    if (path == NULL || stat(path, &now) != 0)
        return;
    if (now.st_ino == loaded.st_ino && now.st_mtim.tv_nsec == loaded.st_mtim.tv_nsec
        && now.st_mtim.tv_sec == loaded.st_mtim.tv_sec)
        return;
    file = fopen(path, "r");
    if (file == NULL)
        return;
    entry_count = 0;
    while (entry_count < ENTRIES && fgets(line, sizeof line, file) != NULL) {
        char *space = strchr(line, ' ');
        if (space == NULL)
            continue;
        *space = '\0';
        space[strcspn(space + 1, "\n") + 1] = '\0';
        snprintf(entries[entry_count].key, sizeof entries[0].key, "%.95s", line);
        snprintf(entries[entry_count].value, sizeof entries[0].value, "%.255s", space + 1);
        entry_count++;
    }
    fclose(file);
    loaded = now;
}

static int get_text(const char *key, char *value, size_t size)
{
    int found = 0;

    pthread_mutex_lock(&lock);
    load();
    for (int place = 0; place < entry_count && !found; place++)
        if (strcmp(entries[place].key, key) == 0) {
            snprintf(value, size, "%s", entries[place].value);
            found = 1;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

static int get_number(const char *key, u64 *value)
{
    char text[256];

    if (!get_text(key, text, sizeof text))
        return 0;
    *value = text[0] == '-' ? (u64)strtoll(text, NULL, 0) : strtoull(text, NULL, 0);
    return 1;
}

static u64 number_or(const char *key, u64 otherwise)
{
    u64 value = otherwise;
    get_number(key, &value);
    return value;
}

static nvmlReturn_t faults(const char *prefix, const char *function)
{
    char key[128];

    snprintf(key, sizeof key, "%s%s.crash", prefix, function);
    if (number_or(key, 0))
        abort();
    snprintf(key, sizeof key, "%s%s.hang", prefix, function);
    while (number_or(key, 0))
        usleep(2000);
    snprintf(key, sizeof key, "%s%s.slow", prefix, function);
    usleep(1000 * number_or(key, 0));
    snprintf(key, sizeof key, "%s%s.return", prefix, function);
    return (nvmlReturn_t)number_or(key, SUCCESS);
}

static nvmlReturn_t enter(nvmlDevice_t device, const char *function)
{
    char prefix[16], key[32];
    nvmlReturn_t fault = faults("", function);

    if (fault != SUCCESS || device == NULL)
        return fault;
    snprintf(prefix, sizeof prefix, "%d.", device->index);
    fault = faults(prefix, function);
    snprintf(key, sizeof key, "%d.lost", device->index);
    return number_or(key, 0) ? LOST : fault;
}

static nvmlReturn_t device_number(nvmlDevice_t device, const char *function, const char *what, u64 *value)
{
    char key[96];
    nvmlReturn_t fault = enter(device, function);

    if (fault != SUCCESS)
        return fault;
    snprintf(key, sizeof key, "%d.%s", device->index, what);
    return get_number(key, value) ? SUCCESS : NOT_SUPPORTED;
}

static nvmlReturn_t device_unsigned(nvmlDevice_t device, const char *function, const char *what, unsigned *value)
{
    u64 wide;
    nvmlReturn_t result = device_number(device, function, what, &wide);

    if (result == SUCCESS)
        *value = (unsigned)wide;
    return result;
}

static nvmlReturn_t device_text(nvmlDevice_t device, const char *function, const char *what, char *text, unsigned size)
{
    char key[96];
    nvmlReturn_t fault = enter(device, function);

    if (fault != SUCCESS)
        return fault;
    snprintf(key, sizeof key, "%d.%s", device->index, what);
    return get_text(key, text, size) ? SUCCESS : NOT_SUPPORTED;
}

#define UNSIGNED(name)                                                                                      \
    EXPORT nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t device, unsigned *value)                           \
    {                                                                                                       \
        return device_unsigned(device, "nvmlDeviceGet" #name, #name, value);                                \
    }
#define UNSIGNED_OF_ONE(name)                                                                               \
    EXPORT nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t device, int which, unsigned *value)                \
    {                                                                                                       \
        char what[64];                                                                                      \
        snprintf(what, sizeof what, #name "(%d,)", which);                                                  \
        return device_unsigned(device, "nvmlDeviceGet" #name, what, value);                                 \
    }
#define LONG(name)                                                                                          \
    EXPORT nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t device, u64 *value)                                \
    {                                                                                                       \
        return device_number(device, "nvmlDeviceGet" #name, #name, value);                                  \
    }
#define PAIR(name)                                                                                          \
    EXPORT nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t device, unsigned *first, unsigned *second)         \
    {                                                                                                       \
        nvmlReturn_t result = device_unsigned(device, "nvmlDeviceGet" #name, #name "[0]", first);           \
        return result != SUCCESS ? result                                                                   \
                                 : device_unsigned(device, "nvmlDeviceGet" #name, #name "[1]", second);     \
    }
#define TEXT(name)                                                                                          \
    EXPORT nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t device, char *text, unsigned size)                 \
    {                                                                                                       \
        return device_text(device, "nvmlDeviceGet" #name, #name, text, size);                               \
    }

UNSIGNED(PowerUsage)
UNSIGNED(EnforcedPowerLimit)
UNSIGNED(PowerManagementDefaultLimit)
UNSIGNED(CurrPcieLinkGeneration)
UNSIGNED(CurrPcieLinkWidth)
UNSIGNED(MaxPcieLinkGeneration)
UNSIGNED(MaxPcieLinkWidth)
UNSIGNED(PcieReplayCounter)
UNSIGNED(PersistenceMode)
UNSIGNED(PerformanceState)
UNSIGNED(ComputeMode)
UNSIGNED(MaxMigDeviceCount)
UNSIGNED(VirtualizationMode)
UNSIGNED(NumGpuCores)
UNSIGNED(MemoryBusWidth)
UNSIGNED(Architecture)
UNSIGNED(FanSpeed)
UNSIGNED_OF_ONE(Temperature)
UNSIGNED_OF_ONE(TemperatureThreshold)
UNSIGNED_OF_ONE(ClockInfo)
UNSIGNED_OF_ONE(MaxClockInfo)
UNSIGNED_OF_ONE(PcieThroughput)
LONG(TotalEnergyConsumption)
LONG(CurrentClocksEventReasons)
LONG(SupportedClocksEventReasons)
LONG(CurrentClocksThrottleReasons)
LONG(SupportedClocksThrottleReasons)
PAIR(EccMode)
PAIR(MigMode)
PAIR(CudaComputeCapability)
PAIR(PowerManagementLimitConstraints)
TEXT(Name)
TEXT(UUID)
TEXT(VbiosVersion)

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    return code == SUCCESS ? "Success" : "an error of the stub";
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    for (int index = 0; index < DEVICES; index++) {
        devices[index].index = mig_devices[index].index = index;
        mig_devices[index].is_mig = 1;
    }
    if (number_or("noise", 0)) {
        printf("NVML says {\"line\":\"device\"\n\x1b]52;c;aGVsbG8=\x07");
        fflush(stdout);
    }
    return enter(NULL, "nvmlInit");
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    return enter(NULL, "nvmlShutdown");
}

static nvmlReturn_t system_text(const char *function, const char *key, char *text, unsigned size)
{
    nvmlReturn_t fault = enter(NULL, function);
    if (fault != SUCCESS)
        return fault;
    return get_text(key, text, size) ? SUCCESS : NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    return system_text("nvmlSystemGetDriverVersion", "driver", text, size);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, unsigned size)
{
    return system_text("nvmlSystemGetNVMLVersion", "nvml", text, size);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = (int)number_or("cuda", 0);
    return enter(NULL, "nvmlSystemGetCudaDriverVersion");
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)number_or("count", 0);
    return enter(NULL, "nvmlDeviceGetCount");
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    if (index >= number_or("count", 0))
        return INVALID;
    *device = &devices[index];
    return enter(*device, "nvmlDeviceGetHandleByIndex");
}

static int has_uuid(int index, const char *what, const char *uuid)
{
    char key[32], value[256];
    snprintf(key, sizeof key, "%d.%s", index, what);
    return get_text(key, value, sizeof value) && strcmp(value, uuid) == 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    for (int index = 0; index < (int)number_or("count", 0); index++) {
        int is_mig = has_uuid(index, "mig.UUID", uuid);
        if (is_mig || has_uuid(index, "UUID", uuid)) {
            *device = is_mig ? &mig_devices[index] : &devices[index];
            return enter(*device, "nvmlDeviceGetHandleByUUID");
        }
    }
    return NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    *device = &devices[mig->index];
    return enter(mig, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig)
{
    char key[32];
    u64 mode = 0;

    snprintf(key, sizeof key, "%d.MigMode[0]", device->index);
    if (index > 0 || !get_number(key, &mode) || mode == 0)
        return NOT_FOUND;
    *mig = &mig_devices[device->index];
    return SUCCESS;
}

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } nvmlPciInfo_t;

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    device_unsigned(device, "nvmlDeviceGetPciInfo", "PciInfo_v3.pciDeviceId", &pci->id);
    return device_text(device, "nvmlDeviceGetPciInfo", "PciInfo_v3.busId", pci->bus_id, sizeof pci->bus_id);
}

typedef struct { u64 total, free, used; } nvmlMemory_t;

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    device_number(device, "nvmlDeviceGetMemoryInfo", "MemoryInfo.total", &memory->total);
    device_number(device, "nvmlDeviceGetMemoryInfo", "MemoryInfo.free", &memory->free);
    return device_number(device, "nvmlDeviceGetMemoryInfo", "MemoryInfo.used", &memory->used);
}

typedef struct { unsigned gpu, memory; } nvmlUtilization_t;

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    device_unsigned(device, "nvmlDeviceGetUtilizationRates", "UtilizationRates.memory", &rates->memory);
    return device_unsigned(device, "nvmlDeviceGetUtilizationRates", "UtilizationRates.gpu", &rates->gpu);
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int error, int counter, u64 *count)
{
    char what[64];
    snprintf(what, sizeof what, "TotalEccErrors(%d,%d)", error, counter);
    return device_number(device, "nvmlDeviceGetTotalEccErrors", what, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *a, unsigned *b, unsigned *c, unsigned *d)
{
    device_unsigned(device, "nvmlDeviceGetRemappedRows", "RemappedRows[1]", b);
    device_unsigned(device, "nvmlDeviceGetRemappedRows", "RemappedRows[2]", c);
    device_unsigned(device, "nvmlDeviceGetRemappedRows", "RemappedRows[3]", d);
    return device_unsigned(device, "nvmlDeviceGetRemappedRows", "RemappedRows[0]", a);
}

EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *text)
{
    return device_text(device, "nvmlDeviceGetGspFirmwareVersion", "GspFirmwareVersion", text, 64);
}

typedef struct { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; } nvmlProcessInfo_t;

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *all)
{
    unsigned running = 0;
    nvmlReturn_t result =
        device_unsigned(device, "nvmlDeviceGetComputeRunningProcesses", "ComputeRunningProcesses", &running);
    unsigned room = *count;

    if (result != SUCCESS)
        return result;
    *count = running;
    if (running == 0)
        return SUCCESS;
    if (room < running)
        return INSUFFICIENT_SIZE;
    for (unsigned place = 0; place < running; place++) {
        all[place] = (nvmlProcessInfo_t){.pid = 4000 + place, .memory = 1ULL << 30};
        device_unsigned(device, "nvmlDeviceGetComputeRunningProcesses", "process.pid", &all[place].pid);
    }
    return SUCCESS;
}

typedef struct {
    unsigned id, scope;
    long long timestamp, latency_us;
    int type;
    nvmlReturn_t result;
    union { double d; unsigned ui; u64 ull; } value;
} nvmlFieldValue_t;

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    nvmlReturn_t fault = enter(device, "nvmlDeviceGetFieldValues");

    for (int place = 0; fault == SUCCESS && place < count; place++) {
        char key[64];
        snprintf(key, sizeof key, "%d.field.%u.ret", device->index, fields[place].id);
        fields[place].result = (nvmlReturn_t)number_or(key, NOT_SUPPORTED);
        snprintf(key, sizeof key, "%d.field.%u.type", device->index, fields[place].id);
        fields[place].type = (int)number_or(key, 3);
        snprintf(key, sizeof key, "%d.field.%u.ull", device->index, fields[place].id);
        fields[place].value.ull = number_or(key, 0);
    }
    return fault;
}
