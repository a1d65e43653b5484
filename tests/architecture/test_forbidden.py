"""What no file of the program does: run text as code or as a shell command, or read a format that can."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.sources import PACKAGES, imports, place, python_files, tree

CODE_READERS = {"dill", "cloudpickle", "joblib", "marshal", "pickle", "shelve"}
CALLS = {
    *("eval", "exec", "compile", "__import__"),
    *("os.popen", "os.system", "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell"),
    *("torch.load", "torch.jit.load", "torch.hub.load", "tempfile.mktemp", "yaml.load"),
}

NAMES_A_SHELL = {"argcomplete.shellcode", "shellcode"}
"""Their `shell` says which one the text is for."""


def test_nothing_runs_text_as_code_or_in_a_shell() -> None:
    wrong = [
        f"{place(path, node)}: {problem}"
        for path in python_files("aibench_tui.py", *PACKAGES)
        for node in ast.walk(tree(path))
        if (problem := _problem(node))
    ]
    assert wrong == []


def test_no_format_is_read_that_can_run_code() -> None:
    wrong = [
        f"{place(path, statement)}: {name}"
        for path in python_files("aibench_tui.py", *PACKAGES)
        for statement, name, _ in imports(tree(path))
        if name.partition(".")[0] in CODE_READERS
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.run('ls', shell=True)",
        "subprocess.Popen('ls', shell=flag)",
        "os.system('ls')",
        "eval(text)",
        "exec(text)",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_check_sees(line: str) -> None:
    assert any(_problem(node) for node in ast.walk(ast.parse(line)))


@pytest.mark.parametrize("line", ["model.eval()", "subprocess.run(['ls'], shell=False)", "re.compile(pattern)"])
def test_the_check_lets_pass(line: str) -> None:
    assert not any(_problem(node) for node in ast.walk(ast.parse(line)))


def _problem(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    name = ast.unparse(node.func)
    for keyword in node.keywords:
        if keyword.arg in ("shell", "allow_pickle") and name not in NAMES_A_SHELL and not _is_false(keyword.value):
            return f"{name}({keyword.arg}=...)"
    return name if name in CALLS else ""


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False
