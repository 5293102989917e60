"""``ocar paper``: what is printed, in three forms, and commands that make what is missing."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from kept_files import write_kept

from ocar_lab.cli import main, paper_tables
from ocar_lab.cli import run as run_command
from ocar_lab.cli.paper import ALIASES, NAMES
from ocar_lab.experiment import Job
from ocar_lab.paper.claims import beside_er, constant_cost
from ocar_lab.paper.commands import Command
from ocar_lab.paper.tables import clear_tables, convex_table, table1
from ocar_lab.paper.times import ALLOWED, times_table
from ocar_lab.runs import read_all
from ocar_lab.runs.find import HOW_TO_RUN

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """ER at the paper's numbers but for AAA, and OCAR below it; one seed of LPR."""
    er = {"acc": 0.282, "aaa": 0.466, "wc_acc": 0.125, "probe": 0.449}
    steps = enumerate((-0.01, 0.0, 0.01))
    seeds = {seed: {name: value + step for name, value in er.items()} for seed, step in steps}
    write_kept(tmp_path, "split-cifar100", "er", seeds)
    write_kept(tmp_path, "split-cifar100", "ocar", {0: {"acc": 0.349, "aaa": 0.4, "wc_acc": 0.25}})
    return tmp_path


def lines(capsys: Captured) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_the_table_has_paper_ours_difference_claims_and_commands(
    results: Path, capsys: Captured
) -> None:
    assert main(["paper", "table1", "--results", str(results)]) == 0
    said = lines(capsys)
    at = said.index("er: paper 28.2 ± 1.2 36.6 ± 2.0 12.5 ± 0.6 44.9 ± 0.9")
    assert said[at + 1] == "ours, 3 seeds 28.2 ± 1.0 46.6 ± 1.0 12.5 ± 1.0 44.9 ± 1.0"
    assert said[at + 2] == "difference +0.0 +4.5 ! +0.0 +0.0"  # 10 / √5
    assert "difference +0.0° -6.8° ! +0.0°" in said  # (40 - 48.2) / 1.2
    assert (
        "More than 2 standard deviations off: er AAA +4.5, ocar AAA -6.8; 2 of 7 numbers." in said
    )
    claims = [line for line in said if line.startswith("The paper's claim")]
    over = "(published splits, seed 0)"  # the only seed of OCAR
    assert f"AAA {over}: does not hold, because of ocar 40.0, er 45.6. Missing:" in claims[0]
    assert f"WC-Acc {over}: open, holds so far: ocar 25.0, er 11.5. Missing:" in claims[1]
    assert "ocar run split-cifar100 er --seeds 3 4" in said
    assert "ocar run split-cifar100 ocar --seeds 0 1 2 3 4" in said  # it lacks the probe
    assert "ocar run split-cifar100 er --seeds 0 1 2 3 4 --iid" in said


def test_every_claim_is_checked(results: Path, capsys: Captured) -> None:
    assert main(["paper", "check", "--results", str(results)]) == 0
    said = lines(capsys)
    at = said.index("split-cifar100 (published splits, seed 0)")  # the only one of OCAR
    where = "ocar and ocar-ace above every baseline in"
    assert said[at + 2] == f"{where} AAA does not hold ocar 40.0, er 45.6; 11 missing"  # of 12
    assert said[at + 3] == f"{where} WC-Acc open ocar 25.0, er 11.5; 11 missing"
    assert "er above ocar-der++, which fails, in Acc open 2 missing" in said
    assert "ocar paper table1 --make --benchmark split-tinyimagenet" in said
    assert "ocar run clear er --seeds 0 1 2 3 4 --lr LR" in said
    assert "ocar run convex ngd --seeds 0 1 2 3 4" in said
    assert sum(line.startswith("ocar run split-cifar100 lpr") for line in said) == 1  # its time
    assert main(["paper", "check", "--results", str(results), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    claims, halves = document["claims"], ["split-cifar100", "split-tinyimagenet"]
    assert claims["split-cifar100"][0]["against"] == [["ocar", "er"]]
    others = ["clear", "convex", "split-cifar100, time", "split-cifar100, ocar"]
    assert list(claims) == [*halves, *others]
    makes = [f"ocar paper table1 --make --benchmark {half}" for half in halves]
    assert document["missing"][:2] == makes


def test_a_claim_says_whether_chance_explains_it(tmp_path: Path, capsys: Captured) -> None:
    stream = {"er": (9.0, 9.5, 9.1), "ewc": (9.1, 9.4, 9.2), "ngd": (5.0, 5.3, 5.1)}
    for label, losses in (stream | {"ocar": (3.0, 3.2, 3.1)}).items():
        seeds = {seed: {"l_p": loss, "l_s": 9.0 + seed} for seed, loss in enumerate(losses)}
        write_kept(tmp_path, "convex", label, seeds)
    assert main(["paper", "check", "--results", str(tmp_path)]) == 0
    said = lines(capsys)
    assert "convex (seeds 0 1 2)" in said
    assert "ocar below er, ewc, ngd in L_p holds * ocar 3.1, ngd 5.1" in said
    assert "ngd below ewc in L_p holds * ngd 5.1, ewc 9.2" in said
    assert "ewc below ngd in L_s does not hold ewc 10.0, ngd 10.0" in said
    assert not any(line.startswith("ocar run convex") and "0 1 2 " in line for line in said)


def test_other_splits_and_settings_are_named_and_made_again(
    tmp_path: Path, capsys: Captured
) -> None:
    before = {"fisher": "sketched(4)", "splits": "own"}
    seeds = {seed: {"aaa": 0.4, "wc_acc": 0.2, "acc": 0.3, "probe": 0.4} for seed in range(5)}
    write_kept(tmp_path, "split-cifar100", "ocar", seeds, changed=before)
    write_kept(tmp_path, "split-cifar100", "er", seeds, changed={"splits": "own"})
    write_kept(tmp_path, "split-cifar100", "lpr", seeds)
    write_kept(tmp_path, "pacs", "ocar", seeds, changed={"fisher": "sketched(4)"})
    assert main(["paper", "table1", "--results", str(tmp_path)]) == 0
    said = lines(capsys)
    assert sum(line.startswith("ours, 5 seeds, own splits") for line in said) == 2
    assert sum(line.startswith("ours, 5 seeds") for line in said) == 3
    assert main(["paper", "check", "--results", str(tmp_path)]) == 0
    said = lines(capsys)
    at = said.index("split-cifar100 (own splits, seeds 0 1 2 3 4)")
    assert "Not of the present preset: ocar (fisher=sketched(4))." in said[at:]
    assert main(["paper", "clear", "--results", str(tmp_path)]) == 0
    assert "ocar run pacs ocar --seeds 0 1 2 3 4" in lines(capsys)


@pytest.mark.parametrize(("whole", "state"), [(100.0, "holds"), (300.0, "does not hold")])
def test_the_cost_of_later_tasks_is_compared_with_the_first(
    tmp_path: Path, whole: float, state: str
) -> None:
    times = {"acc": 0.3, "seconds": whole, "first_task_seconds": 5.0}
    write_kept(tmp_path, "split-cifar100", "ocar", {0: times})
    runs, _ = read_all(tmp_path)
    assert constant_cost(runs).state == state
    assert constant_cost([]).state == "open"


@pytest.mark.parametrize(("seconds", "state"), [(11.0, "holds"), (13.0, "does not hold")])
def test_ocar_is_compared_with_three_times_er(tmp_path: Path, seconds: float, state: str) -> None:
    for method, measured in (("er", 4.0), ("ocar", seconds)):
        write_kept(tmp_path, "split-cifar100", method, {0: {"first_task_seconds": measured}})
    runs, _ = read_all(tmp_path)
    assert beside_er(times_table(runs)).state == state
    assert beside_er(times_table([])).state == "open"


def test_json_has_every_number(results: Path, capsys: Captured) -> None:
    assert main(["paper", "table1", "--results", str(results), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (table,) = said["tables"]
    rows = {row["method"]: row for row in table["rows"]}
    assert len(rows) == 16
    cell = rows["er"]["cells"]["aaa"]
    assert cell["paper"] == {"mean": 36.6, "std": 2.0}
    assert cell["ours"] == {
        "mean": pytest.approx(46.6),
        "std": pytest.approx(1.0),
        "count": 3,
    }
    assert cell["deviations"] == pytest.approx(10 / 5**0.5)
    assert (cell["far"], cell["paper_alone"]) == (True, False)
    assert rows["ocar"]["cells"]["acc"]["paper_alone"] is True
    assert rows["gdumb"]["cells"]["aaa"]["paper"] is None
    assert table["claims"][0]["against"] == [["ocar", "er"]]
    assert {"method": "er", "seeds": [3, 4]}.items() <= table["missing"][1].items()
    assert "sqrt(s_paper² + s_ours²)" in said["deviations"]


def test_markdown_is_a_table(results: Path, capsys: Captured) -> None:
    assert main(["paper", "table1", "--results", str(results), "--markdown"]) == 0
    said = capsys.readouterr().out
    assert "| method | Acc | AAA | WC-Acc | Probed |\n|---|---:|---" in said
    assert "| difference | +0.0 | +4.5 ! | +0.0 | +0.0 |\n" in said
    assert "\n```\nocar run split-cifar100 er --seeds 0 1 2 3 4 --iid\n" in said


def test_the_stand_in_says_that_it_is_one(tmp_path: Path, capsys: Captured) -> None:
    write_kept(tmp_path, "pacs", "er", {0: {"acc": 0.5, "aaa": 0.4}})
    assert main(["paper", "clear", "--results", str(tmp_path)]) == 0
    said = lines(capsys)
    (at,) = [i for i, line in enumerate(said) if line.startswith("pacs, a stand-in for clear")]
    assert said[at + 2] == "er: ours, 1 seed 50.0 40.0"
    assert "er: paper 63.1 ± 0.7 58.9 ± 0.8 47.7 ± 1.6" in said[:at]
    assert "ocar run clear er --seeds 0 1 2 3 4 --lr LR" in said[:at]
    assert any("LR of er" in line for line in said[:at])


def test_settings_of_our_own_are_named(tmp_path: Path, capsys: Captured) -> None:
    write_kept(tmp_path, "clear", "er", {0: {"acc": 0.5, "aaa": 0.4}}, changed={"lr": 0.1})
    assert main(["paper", "clear", "--results", str(tmp_path)]) == 0
    assert any("ours are: er (lr=0.1)" in line for line in lines(capsys))


def test_times_say_of_what_device_they_are(tmp_path: Path, capsys: Captured) -> None:
    for label, seconds in (("er", 2.0), ("ocar", 5.0)):
        write_kept(tmp_path, "split-cifar100", label, {0: {"first_task_seconds": seconds}})
    assert main(["paper", "times", "--results", str(tmp_path)]) == 0
    said = lines(capsys)
    assert said[1] == "method paper (V100) ours (A GPU) paper / ER ours / ER seeds"
    assert "ocar 38 5.0 2.7 2.5 1" in said
    assert "scr 131 9.4" in said
    assert not any("present preset" in line for line in said)
    slow = {"max_tasks": 1, "every": "task", "fisher": "sketched(4)"}
    write_kept(tmp_path, "split-cifar100", "mir", {0: {"first_task_seconds": 6.0}}, changed=slow)
    assert main(["paper", "times", "--results", str(tmp_path)]) == 0
    said = lines(capsys)
    assert "Not of the present preset: mir (fisher=sketched(4))." in said
    assert any(line.startswith("ocar run split-cifar100 mir --seeds 0 --max-t") for line in said)
    assert main(["paper", "table3", "--results", str(tmp_path), "--json"]) == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["ocar"]["ratio"] == pytest.approx(2.5)


def test_without_results_the_table_says_how_to_begin(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "table1", "--benchmark", "split-tinyimagenet"]) == 0
    assert "ocar run split-tinyimagenet ocar --seeds 0 1 2 3 4" in lines(capsys)
    assert main(["paper", "table1", "--results", "nowhere"]) == 1
    assert capsys.readouterr().err == f"ocar: There is no folder nowhere. {HOW_TO_RUN}\n"


def test_make_does_the_missing_runs_and_counts_them(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    jobs: list[Job] = []

    def pretend(given: list[Job], **_: object) -> int:
        jobs.extend(given)
        found = {job.config.seed: {"acc": 0.3, "aaa": 0.4} for job in given}
        write_kept(tmp_path / "made", "split-cifar100", "er-ace", found)
        return 0

    checked: list[str] = []
    monkeypatch.setattr("ocar_lab.cli.running.do_runs", pretend)
    monkeypatch.setattr(paper_tables, "require_data", lambda name, root: checked.append(name))
    make = ["paper", "table1", "--results", str(results), "--make", "--runs", f"{tmp_path}/made"]
    make += ["--methods", "er-ace", "er", "--device", "cpu"]
    assert main([*make, "--seeds", "4"]) == 0, capsys.readouterr().err
    runs = [(job.config.label, job.config.seed) for job in jobs]
    assert runs == [*(("er-ace", seed) for seed in range(4)), ("er", 3)]  # ER has three
    assert "ours, 4 seeds 30.0 ± 0.0 40.0 ± 0.0" in lines(capsys)
    assert main([*make, "--methods", "er", "--seeds", "3"]) == 0
    assert len(jobs) == 5
    assert capsys.readouterr().err == "Nothing to make.\n"
    half = ["--benchmark", "split-tinyimagenet", "--methods", "agem", "mir", "--seeds", "1"]
    assert main([*make[:-5], *half, "--device", "cpu"]) == 0
    assert "agem is left out: no value was published for lr.\n" in capsys.readouterr().err
    assert [job.config.label for job in jobs[5:]] == ["mir"]
    assert checked == ["split-cifar100", "split-tinyimagenet"]


def test_make_begins_with_whole_data_only(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make = ["paper", "table1", "--make", "--benchmark", "split-tinyimagenet", "--methods", "er"]
    make += ["--data-root", str(tmp_path), "--device", "cpu"]
    assert main(make) == 1
    said = capsys.readouterr()
    assert said.err.startswith("ocar: Table 1 needs tiny-imagenet: missing. Put http")
    sample = tmp_path / "tiny-imagenet-200"
    for name in ("train/n02124075/images", "val/images"):
        (sample / name).mkdir(parents=True)
        (sample / name / "0.JPEG").touch()
    (sample / "val" / "val_annotations.txt").write_text("0.JPEG\tn02124075\n")
    assert main(make) == 1
    said = capsys.readouterr()
    text = "tiny-imagenet-200 is not all of it. A sample: 1 of 100,000 training and 1 of 10,000"
    assert text in said.err
    assert not said.out
    assert not (tmp_path / "runs").exists()


def test_a_run_that_failed_is_said_below_the_table(
    results: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(results)
    monkeypatch.setattr("ocar_lab.cli.running.do_runs", lambda jobs, **_: 1)
    monkeypatch.setattr(paper_tables, "require_data", lambda name, root: None)
    assert main(["paper", "table1", "--results", ".", "--make", "--device", "cpu"]) == 1
    said = capsys.readouterr()
    assert "28.2 ± 1.0" in said.out
    assert said.err.endswith(
        "Not all runs are finished, see above. The same command resumes them.\n"
    )


def test_a_damaged_file_does_not_hide_the_others(results: Path, capsys: Captured) -> None:
    bad = results / "split-cifar100" / "lpr-0123456789.json"
    bad.write_text("{")
    assert main(["paper", "table1", "--results", str(results)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"ocar: {bad} cannot be read")
    assert "28.2 ± 1.0" in captured.out


def test_wrong_calls(capsys: Captured) -> None:
    assert main(["paper"]) == 2
    said = capsys.readouterr().out
    assert all(f"ocar paper {name}" in said for name in NAMES)
    assert main(["paper", "nothing"]) == 2
    assert capsys.readouterr().err == (
        f"ocar: Unknown table or figure 'nothing'. There are {', '.join([*NAMES, *ALIASES])}.\n"
    )
    assert main(["paper", "table1", "--benchmark", "clear"]) == 2
    assert main(["paper", "clear", "--json", "--markdown"]) == 2
    assert "Invalid --json with --markdown" in capsys.readouterr().err
    assert main(["paper", "table1", "--methods", "er"]) == 2
    assert "Invalid --methods without --make." in capsys.readouterr().err
    assert main(["paper", "table1", "--make", "--methods", "er-acce"]) == 2
    assert "Did you mean 'er-ace'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_help(name: str, capsys: Captured) -> None:
    assert main(["paper", name, "--help"]) == 0
    assert f"usage: ocar paper {name}" in capsys.readouterr().out


COMMANDS = [
    *(("table", "split-cifar100", command) for command in table1([]).commands),
    *(
        ("table", table.benchmark, command)
        for table in (table1([], "split-tinyimagenet"), *clear_tables([]), convex_table([]))
        for command in table.commands
    ),
    *(("times", "split-cifar100", command) for command in times_table([]).commands[-3:]),
]


@pytest.mark.parametrize(
    ("kind", "benchmark", "command"), COMMANDS, ids=[c.line.split("--")[0] for *_, c in COMMANDS]
)
def test_a_command_makes_the_runs_that_its_row_takes(
    kind: str,
    benchmark: str,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    jobs: list[Job] = []

    def note(given: list[Job], **_: object) -> int:
        jobs.extend(given)
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_command, "do_runs", note)
    line = command.line
    for setting in command.to_choose:
        line = line.replace(f" {setting.upper()}", " 0.1")
    assert main([*shlex.split(line)[1:], "--device", "cpu"]) == 0, capsys.readouterr().err
    assert [job.config.seed for job in jobs] == list(command.seeds)
    for config in (job.config for job in jobs):
        assert (config.benchmark, config.label) == (benchmark, command.method)
        allowed = {*command.to_choose, *(ALLOWED if kind == "times" else ())}
        assert config.changed().keys() <= allowed
