from __future__ import annotations

import pytest
from click.shell_completion import BashComplete

from cli.making import write
from retrotape.cli import main


def completed(*args: object, incomplete: str) -> list[str]:
    complete = BashComplete(main, {}, "retrotape", "_RETROTAPE_COMPLETE")
    return [item.value for item in complete.get_completions([str(arg) for arg in args], incomplete)]


@pytest.mark.parametrize(
    ("shell", "part"), [("bash", "complete -o"), ("zsh", "#compdef retrotape"), ("fish", "complete ")]
)
def test_scripts(run, shell, part):
    done = run("completion", shell)
    assert done.code == 0
    assert part in done.out
    assert "_RETROTAPE_COMPLETE" in done.out


def test_an_unknown_shell(run):
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in run("completion", "csh").failure()


def test_verbs_options_and_names_are_completed(saved, tmp_path):
    assert completed(incomplete="ch") == ["check"]
    assert completed("grad", saved["plain"], incomplete="lo") == ["loss"]
    assert set(completed("grad", saved["plain"], "loss", incomplete="")) >= {"x", "w", "b"}
    assert completed("show", incomplete="--o") == ["--ops"]


def test_nothing_is_completed_that_a_shell_would_run(tmp_path):
    names = {"$(touch owned)": {"var": 0}, "a;b": {"var": 0}, "a b": {"var": 0}, "dense/kernel:0": {"var": 0}}
    path = write(tmp_path / "evil.tape", names=names)
    assert completed("grad", path, incomplete="") == ["dense/kernel:0"]


def test_a_damaged_tape_completes_nothing(tmp_path):
    (tmp_path / "text.tape").write_text("hello")
    assert completed("grad", tmp_path / "text.tape", incomplete="") == []


def test_help_says_where_each_shell_wants_it(run):
    lines = run("completion", "--help").out.splitlines()
    for shell, file in (("bash", "~/.bashrc"), ("zsh", "~/.zshrc"), ("fish", "~/.config/fish/config.fish")):
        (line,) = [line for line in lines if line.strip().startswith(f"{shell}:")]
        assert line.endswith(f"in {file}")
