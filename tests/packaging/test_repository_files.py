"""The files around the code say what is true: workflows, forms, citation, decisions, settings of editors and hooks."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retrotape import _version

yaml = pytest.importorskip("yaml", reason="comes with mkdocs, which the oldest environment does not have")
toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
FORMS = sorted(path for path in GITHUB.glob("ISSUE_TEMPLATE/*.yml") if path.name != "config.yml")
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
PROJECT = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HOME = PROJECT["project"]["urls"]["Homepage"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def name(path: Path) -> str:
    return path.name


def load(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def workflow(stem: str) -> dict[str, Any]:
    """Return a workflow; `on` is a boolean in YAML 1.1, and gets its name back."""
    found = load(GITHUB / "workflows" / f"{stem}.yml")
    return {("on" if key is True else key): value for key, value in found.items()}


def steps(jobs: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in jobs.values() for step in job.get("steps", [])]


def commands(jobs: dict[str, Any]) -> list[str]:
    return [step["run"] for step in steps(jobs) if "run" in step]


# ------------------------------------------------------------------ workflows


def test_every_change_runs_what_must_pass_on_every_python() -> None:
    ci = workflow("ci")
    assert {"push", "pull_request"} <= set(ci["on"])
    (job,) = ci["jobs"].values()
    assert commands(ci["jobs"]) == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == classifiers
    (python,) = (step for step in job["steps"] if "setup-python" in step.get("uses", ""))
    assert python["with"]["cache"] == "pip"
    assert (ROOT / python["with"]["cache-dependency-path"]).is_file()


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_a_workflow_is_bounded_pinned_and_may_only_read(path: Path) -> None:
    found = workflow(path.stem)
    assert found["permissions"] == {"contents": "read"}
    for job in found["jobs"].values():
        assert "uses" in job or 0 < job["timeout-minutes"] <= 180
    for step in steps(found["jobs"]):
        if "uses" in step:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"])
    assert len(re.findall(r"uses: \S+@[0-9a-f]{40} # v\d+\.\d+\.\d+\b", path.read_text())) == sum(
        "uses" in step for step in steps(found["jobs"])
    ), "the version of each action is beside its commit"


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_what_a_workflow_runs_is_there(path: Path) -> None:
    jobs = workflow(path.stem)["jobs"]
    for job in jobs.values():
        targets = job.get("strategy", {}).get("matrix", {}).get("target", [])
        for command in commands({"": job}):
            made = re.match(r"make (\S+)", command)
            for target in targets if made and made[1].startswith("$") else [made[1]] if made else []:
                assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE), target
            for tool in re.findall(r"\btools/\w+\.py", command):
                assert (ROOT / tool).is_file()
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()


def test_coverage_has_a_floor_and_is_measured_each_week() -> None:
    weekly = workflow("weekly")
    assert "schedule" in weekly["on"]
    assert "coverage" in weekly["jobs"]["make"]["strategy"]["matrix"]["target"]
    assert "--cov" in MAKEFILE
    assert PROJECT["tool"]["coverage"]["run"]["branch"] is True
    assert 50 < PROJECT["tool"]["coverage"]["report"]["fail_under"] < 100


def test_every_part_of_all_tests_runs_each_week() -> None:
    (line,) = (line for line in MAKEFILE.splitlines() if line.startswith("PARTS := "))
    parts = line.split()[2:]
    assert workflow("weekly")["jobs"]["parts"]["strategy"]["matrix"]["part"] == parts
    for part in parts:
        assert re.search(rf"^part-.*{part}", MAKEFILE, re.MULTILINE), part


def test_only_a_version_tag_is_published_and_only_after_all_checks() -> None:
    release = workflow("release")
    assert release["on"] == {"push": {"tags": ["v[0-9]*"]}}
    jobs = release["jobs"]
    publish = jobs["publish"]
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    assert "workflow_call" in workflow("ci")["on"]
    assert (jobs["check"]["needs"], set(publish["needs"])) == ("build", {"test", "check"})
    assert commands({"": jobs["build"]})[0] == "make wheel"
    assert commands({"": jobs["check"]}) == ["make check-dist"]
    assert publish["environment"]["name"] == "pypi"
    assert publish["permissions"] == {"id-token": "write"}
    assert [key for key, job in jobs.items() if "permissions" in job] == ["publish"]
    assert [step["uses"].split("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    assert "secrets." not in (GITHUB / "workflows" / "release.yml").read_text()


def test_dependabot_renews_actions_only() -> None:
    assert [one["package-ecosystem"] for one in load(GITHUB / "dependabot.yml")["updates"]] == ["github-actions"]


# ------------------------------------------------------------------ forms


@pytest.mark.parametrize("path", FORMS, ids=name)
def test_a_form_is_one_that_github_takes(path: Path) -> None:
    form = load(path)
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert any(field.get("validations", {}).get("required") for field in form["body"])
    for field in form["body"]:
        assert field["type"] in ("dropdown", "textarea", "input", "checkboxes")
        assert field["attributes"]["label"]


def test_there_are_three_forms_and_a_private_way() -> None:
    assert [path.stem for path in FORMS] == ["bug", "feature", "question"]
    config = load(GITHUB / "ISSUE_TEMPLATE" / "config.yml")
    assert config["blank_issues_enabled"] is False
    urls = [link["url"] for link in config["contact_links"]]
    assert f"{HOME}/security/advisories/new" in urls
    for url in urls:
        assert url.startswith(HOME)
        if "/blob/main/" in url:
            assert (ROOT / url.partition("/blob/main/")[2]).is_file()


def test_a_bug_comes_with_versions_a_program_and_the_truth() -> None:
    fields = {field["id"]: field for field in load(GITHUB / "ISSUE_TEMPLATE" / "bug.yml")["body"]}
    required = {key for key, field in fields.items() if field.get("validations", {}).get("required")}
    assert {"versions", "program"} <= required
    assert "truth" in fields
    command = fields["versions"]["attributes"]["placeholder"].split()
    assert command == ["retrotape", "doctor"]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert _version.__version__ in done.stdout


def test_a_pull_request_is_asked_for_our_habits() -> None:
    text = (GITHUB / "pull_request_template.md").read_text()
    for habit in (".ci/run", "Tests can fail", "second, independent route", "Words", "Docs", "Changelog"):
        assert habit in text


# ------------------------------------------------------------------ decisions


def nav_pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in nav_pages(part)]


def test_every_decision_is_in_the_nav_in_order() -> None:
    parts = [part["Decisions"] for part in load(ROOT / "mkdocs.yml")["nav"] if "Decisions" in part]
    assert nav_pages(parts) == [f"decisions/{path.name}" for path in DECISIONS]
    assert len(DECISIONS) >= 5


@pytest.mark.parametrize("path", DECISIONS, ids=name)
def test_a_decision_has_a_number_of_its_own_and_four_parts(path: Path) -> None:
    number, text = path.name[:4], path.read_text(encoding="utf-8")
    assert [other.name for other in DECISIONS if other.name.startswith(number)] == [path.name]
    assert text.startswith(f"# {int(number)}. ")
    assert re.findall(r"^## (\w+)", text, re.MULTILINE) == ["Context", "Decision", "Consequences", "Alternatives"]


# ------------------------------------------------------------------ one fact, one value


def test_the_citation_agrees_with_the_package() -> None:
    citation, project = load(ROOT / "CITATION.cff"), PROJECT["project"]
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "authors", "title"} <= set(citation)
    assert citation["title"] == project["name"]
    assert citation["version"] == _version.__version__
    assert citation["license"] == project["license"]
    assert citation["repository-code"] == project["urls"]["Source"]
    assert [one["name"] for one in citation["authors"]] == [one["name"] for one in project["authors"]]


def test_the_addresses_of_the_project_are_below_one() -> None:
    urls = PROJECT["project"]["urls"]
    assert set(urls) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    for url in urls.values():
        assert url == HOME or url.startswith(f"{HOME}/")
        path = re.search(r"/(?:tree|blob)/main/(.*)", url)
        assert path is None or (ROOT / path[1]).exists()


def test_hooks_run_the_tools_of_the_lock() -> None:
    (repo,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    assert {hook["language"] for hook in repo["hooks"]} == {"system"}
    run = [re.sub(r" --\S+", "", hook["entry"]) for hook in repo["hooks"]]
    lint = re.search(r"^lint: env\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1]
    linted = [re.sub(r" --\S+| \.(?=$)", "", line.strip()) for line in lint.splitlines()]
    assert run == [line.replace("$(BIN)", ".venv/bin") for line in linted]


def test_editors_and_ruff_agree_on_lines() -> None:
    settings = configparser.ConfigParser()
    settings.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    assert settings["top"]["root"] == "true"
    assert settings.getint("*.py", "max_line_length") == PROJECT["tool"]["ruff"]["line-length"]
    assert settings["Makefile"]["indent_style"] == "tab"
