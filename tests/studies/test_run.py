"""The harness: what is trained, what is found, what is left, and that nothing is done twice."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from shortcaps.cli import app
from shortcaps.errors import RunError
from shortcaps.recipes import FOLDER
from shortcaps.reproduce.grid import Job, Launch, Processes
from shortcaps.reproduce.readme import replace_block
from shortcaps.runs.config import TrainConfig
from shortcaps.studies import STUDIES
from shortcaps.studies.findings import compare
from shortcaps.studies.measured import Measured, Scores, read_measurement, read_measurements, write_measurement
from shortcaps.studies.report import all_lines, readme_lines, sentences_of, write_study
from shortcaps.studies.run import Places, plan, run_study
from shortcaps.studies.study import Lookup, Study
from shortcaps.studies.trained import Shelf, runs_by_pattern, wanted_runs
from shortcaps.training.run import train
from tests.studies.support import fake_digits, folders, in_process, no_training

NETWORKS = ["compact-23k", "cnn-23k"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The study affine of two networks, run once in its quick version on a few made-up digits."""
    place = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("SHORTCAPS_CACHE", str(place / "cache"))
        fake_digits(place / "mnist", monkeypatch)
        outcome = run_study(
            STUDIES["affine"](quick=True),
            Places(place / "results", place / "runs"),
            networks=NETWORKS,
            seeds=1,
            launch=in_process,
        )
        assert outcome.failed == {}
        yield place


@pytest.fixture
def copy(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A copy of it that a test may change."""
    fake_digits(tmp_path / "mnist", monkeypatch)
    for name in ("results", "runs"):
        shutil.copytree(done / name, tmp_path / name)
    return Places(tmp_path / "results", tmp_path / "runs")


def affine() -> Study:
    return STUDIES["affine"](quick=True)


def test_a_study_leaves_records_answers_a_plot_and_a_page(done: Path) -> None:
    assert folders(done / "results") == {
        "affine.json",
        "affine.png",
        "affine.md",
        "affine.html",
        *(f"affine/{network}-seed0.{suffix}" for network in NETWORKS for suffix in ("json", "npz")),
    }
    summary = json.loads((done / "results" / "affine.json").read_text())
    assert summary["quick"] is True
    assert {entry["network"] for entry in summary["measured"]} == set(NETWORKS)
    assert summary["measured"][0]["run"]["epochs"] == 2
    assert summary["measured"][0]["run"]["recipe_epochs"] == 12, "the record says that it was shortened"
    (finding, *_) = summary["findings"]
    low, high = finding["interval"]
    assert low <= finding["difference"] <= high
    assert (finding["network"], finding["opponent"]) == ("compact-23k", "cnn-23k")
    page = (done / "results" / "affine.md").read_text()
    assert "This is the quick version" in page
    assert f"compact-23k is {finding['verdict']}" in page


def test_what_was_measured_is_neither_trained_nor_measured_again(copy: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {m.network: m.record for m in read_measurements(copy.results / "affine")}
    shutil.rmtree(copy.runs)
    monkeypatch.setattr(STUDIES["affine"], "measure", None)
    run_study(affine(), copy, networks=NETWORKS, seeds=1, launch=no_training)
    assert {m.network: m.record for m in read_measurements(copy.results / "affine")} == before


def test_a_measurement_of_a_run_by_another_recipe_is_kept_and_told(
    copy: Places, said: pytest.LogCaptureFixture
) -> None:
    file = copy.results / "affine" / "cnn-23k-seed0.json"
    record = json.loads(file.read_text())
    record["run"]["conditions"]["averaging"] = 0.5
    del record["run"]["conditions"]["optimizer"]  # as in records of the time when there was one
    file.write_text(json.dumps(record))
    run_study(affine(), copy, networks=["cnn-23k"], seeds=1, launch=no_training)
    assert any("is of a run with averaging 0.5 instead of 0.99: move it away" in message for message in said.messages)


def test_other_networks_of_a_study_are_found_though_they_were_not_asked_for(copy: Places) -> None:
    asked: list[object] = []

    class Asks(STUDIES["affine"]):  # type: ignore[misc]
        def measure(self, model: object, trained: object, others: Lookup) -> Measured:
            found = others.find("compact-23k", 0, "")
            asked.append(found and found.run.name)
            asked.append(others.find("compact-23k-plain", 0, ""))
            return Measured({"right": Scores(torch.ones(3))}, {}, "")

        def sentences(self, measurements: object) -> list[str]:
            return []

    shutil.rmtree(copy.results)
    run_study(Asks(quick=True), copy, networks=["cnn-23k"], seeds=1, launch=no_training)
    assert asked == ["compact-23k-affnist-seed0", None]


def test_a_lost_measurement_is_made_again_from_the_run_and_is_the_same(copy: Places) -> None:
    file = copy.results / "affine" / "cnn-23k-seed0.json"
    before = read_measurement(file)
    file.unlink()
    run_study(affine(), copy, networks=NETWORKS, seeds=1, launch=no_training)
    after = read_measurement(file)
    assert after.values == before.values
    assert after.record["images"] == before.record["images"]


def test_runs_of_other_commands_are_used_whatever_their_recipe_is_called(copy: Places, tmp_path: Path) -> None:
    (wanted,) = wanted_runs(affine(), ["cnn-23k"], 1, copy.runs)
    run = tmp_path / "table1" / "some-run"
    recipe = shutil.copy(FOLDER / "compact-adam.toml", tmp_path / "mine.toml")
    train(wanted.job.config.changed(recipe=str(recipe)), run)
    shelf = Shelf([tmp_path / "table1"])
    assert shelf.find(wanted.job.config) == run
    assert shelf.find(wanted.job.config.changed(seed=1)) is None
    assert shelf.find(wanted.job.config.changed(epochs=3)) is None
    assert shelf.find(wanted.job.config.changed(data="mnist")) is None
    assert shelf.find(wanted.job.config.changed(start="runs/other")) is None
    (run / "result.json").unlink()
    assert Shelf([tmp_path / "table1"]).find(wanted.job.config) is None, "it has not ended"


def test_runs_can_be_named_instead(copy: Places, tmp_path: Path) -> None:
    shutil.rmtree(copy.results)
    pattern = str(copy.runs / "cnn-23k-*")
    assert [(entry.network, entry.seed) for entry in runs_by_pattern(pattern, affine())] == [("cnn-23k", 0)]
    run_study(affine(), copy, runs=pattern, launch=no_training)
    assert [m.network for m in read_measurements(copy.results / "affine")] == ["cnn-23k"]
    with pytest.raises(RunError, match=r"--runs 'nothing/\*' names no finished run"):
        run_study(affine(), copy, runs="nothing/*")


def test_a_named_run_on_other_data_is_refused(copy: Places, tmp_path: Path) -> None:
    train(TrainConfig.of(data="mnist", model="cnn-23k", epochs=1), tmp_path / "other")
    with pytest.raises(RunError, match="was trained on mnist, but the study affine needs affnist"):
        run_study(affine(), copy, runs=str(tmp_path / "other"))


def test_a_record_of_another_run_is_not_overwritten(copy: Places, tmp_path: Path) -> None:
    train(TrainConfig.of(data="affnist", model="cnn-23k", epochs=1, max_images=20), tmp_path / "other")
    with pytest.raises(RunError, match=r"cnn-23k-seed0.json was measured on another run than"):
        run_study(affine(), copy, runs=str(tmp_path / "other"))


def test_seeds_share_the_devices_where_there_are_more_of_them_than_networks(copy: Places) -> None:
    shutil.rmtree(copy.results)
    shutil.rmtree(copy.runs)
    both = threading.Barrier(2, timeout=60)

    def waits_for_the_other(job: Job, device: int, devices: int, processes: Processes) -> str | None:
        both.wait()
        return "it only wanted to meet somebody"

    outcome = run_study(affine(), copy, networks=["cnn-23k"], seeds=3, devices=2, launch=in_turn(waits_for_the_other))
    assert len(outcome.failed) == 3


def in_turn(launch: Launch) -> Launch:
    """The first two jobs are launched so; the third, which is alone, ends at once."""
    started: list[Job] = []

    def begin(job: Job, device: int, devices: int, processes: Processes) -> str | None:
        started.append(job)
        return launch(job, device, devices, processes) if len(started) < 3 else "it is alone"

    return begin


def test_a_run_that_fails_is_told_and_the_others_are_measured(copy: Places) -> None:
    shutil.rmtree(copy.results)
    shutil.rmtree(copy.runs / "cnn-23k-affnist-seed0")

    def fails(job: Job, device: int, devices: int, processes: Processes) -> str | None:
        return "the cat ate it"

    outcome = run_study(affine(), copy, networks=NETWORKS, seeds=1, launch=fails)
    assert outcome.failed == {"cnn-23k/affnist, seed 0": "the cat ate it"}
    assert [m.network for m in read_measurements(copy.results / "affine")] == ["compact-23k"]


def test_several_networks_are_trained_at_the_same_time(copy: Places) -> None:
    shutil.rmtree(copy.results)
    shutil.rmtree(copy.runs)
    both = threading.Barrier(2, timeout=30)

    def together(job: Job, device: int, devices: int, processes: Processes) -> str | None:
        both.wait()  # for the other one, which is never there if they come one after another
        return f"device {device} of {devices}"

    outcome = run_study(affine(), copy, networks=NETWORKS, seeds=1, devices=2, launch=together)
    assert sorted(outcome.failed.values()) == ["device 0 of 2", "device 1 of 2"]


def test_a_plan_says_what_is_there_and_what_is_missing(copy: Places) -> None:
    (copy.results / "affine" / "cnn-23k-seed0.json").unlink()
    rows = plan(affine(), copy, networks=NETWORKS, seeds=2, seconds=lambda wanted: 60.0)
    assert [(entry.network, entry.seed, state.partition(" (")[0], seconds) for entry, state, seconds in rows] == [
        ("compact-23k", 0, "measured", 0),
        ("cnn-23k", 0, "trained", 0),
        ("compact-23k", 1, "to train", 60),
        ("cnn-23k", 1, "to train", 60),
    ]


def test_a_plan_does_not_mind_an_old_run_of_what_was_measured(copy: Places) -> None:
    config = copy.runs / "cnn-23k-affnist-seed0" / "config.json"
    config.write_text(config.read_text().replace('"lr": 0.02', '"lr": 0.01'))
    rows = plan(affine(), copy, networks=["cnn-23k"], seeds=1, seconds=lambda wanted: 60.0)
    assert [state for _, state, _ in rows] == ["measured"]


def test_a_measurement_is_read_as_it_was_written(tmp_path: Path) -> None:
    originals = torch.arange(6) // 2
    scores = {"right": Scores(torch.tensor([1.0, 0, 1, 1, 0, 0]), originals), "r2": Scores(torch.randn(5))}
    record = {"study": "s", "network": "baseline/fuzzy", "seed": 3, "part": "x", "quick": False, "run": {}}
    write_measurement(tmp_path, record, Measured(scores, {"more": 0.5}, "images"))
    (found,) = read_measurements(tmp_path)
    assert (tmp_path / "baseline-fuzzy-x-seed3.npz").is_file()
    assert found.values["right"] == 0.5
    assert found.values["more"] == 0.5
    assert torch.equal(found.scores["right"].values, scores["right"].values.double())
    torch.testing.assert_close(found.scores["r2"].values, scores["r2"].values.double())
    assert found.scores["right"].originals is not None
    assert torch.equal(found.scores["right"].originals, originals)
    assert found.scores["r2"].originals is None
    (tmp_path / "baseline-fuzzy-x-seed3.npz").write_bytes(b"no zip file")
    with pytest.raises(RunError, match=r"baseline-fuzzy-x-seed3.json cannot be read as a measurement"):
        read_measurements(tmp_path)


def test_main_claims_get_a_sentence_and_the_others_are_counted(copy: Places) -> None:
    findings = compare(affine(), read_measurements(copy.results / "affine"))
    first, rest = sentences_of(findings)
    assert first == str(next(finding for finding in findings if finding.is_main))
    counted = [int(number) for number in re.findall(r" in (\d+)", rest)]
    assert rest.startswith("Of the other 4 comparisons, below, compact-23k is ")
    assert sum(counted) == 4


def test_the_readme_s_table_has_a_row_for_each_main_claim(copy: Places) -> None:
    header, _, *rows = readme_lines([affine(), STUDIES["pose"](quick=True)], copy.results)
    assert header == "| study | in | compact-23k − cnn-23k |"
    (row,) = rows
    assert row.startswith(
        "| [affine](results/studies/affine.md) | accuracy averaged over mixtures of rotation, scaling and shear |"
    )
    assert row.endswith(", 1 of 3 seeds |")


def test_the_readme_counts_what_other_networks_than_the_chosen_one_reach(copy: Places) -> None:
    for file in (copy.results / "affine").glob("compact-23k-seed*"):
        renamed = file.with_name(file.name.replace("compact-23k", "baseline-fuzzy"))
        renamed.write_bytes(file.read_bytes().replace(b'"network": "compact-23k"', b'"network": "baseline/fuzzy"'))
        file.unlink()
    header, _, *rows = readme_lines([affine()], copy.results)
    assert header == "| study | in |"
    assert rows[0] == ""
    assert re.fullmatch(
        r"- baseline/fuzzy − cnn-23k: (ahead|behind|not told apart) in 1 \(affine\), at least 1 seed each\.", rows[1]
    )


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_without_measurements_there_is_no_report(name: str, tmp_path: Path) -> None:
    assert write_study(STUDIES[name](), tmp_path) == ()
    assert folders(tmp_path) == set()


def test_a_network_for_digits_as_they_are_can_be_measured_where_a_study_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_digits(tmp_path / "mnist", monkeypatch)
    train(TrainConfig.of(data="mnist", model="cnn-23k", epochs=1, adapt=False), tmp_path / "run")
    places = Places(tmp_path / "results", tmp_path / "runs")
    assert run_study(STUDIES["unknown"](quick=True), places, runs=str(tmp_path / "run")).written
    (found,) = read_measurements(tmp_path / "results" / "unknown")
    assert found.record["run"]["dataset"] == "mnist"


def test_a_record_of_a_network_that_is_not_known_is_said_in_a_line(copy: Places) -> None:
    for file in (copy.results / "affine").glob("compact-23k-seed0.*"):
        renamed = file.with_name(file.name.replace("compact-23k", "mynet"))
        renamed.write_bytes(file.read_bytes().replace(b'"network": "compact-23k"', b'"network": "mynet"'))
    with pytest.raises(RunError, match=r"unknown network 'mynet'.*; if it is of a plug-in, name that with --plugin"):
        write_study(affine(), copy.results)


def test_names_are_checked_for_all_studies_before_anything_is_trained(tmp_path: Path) -> None:
    assert "unknown network 'pairs-sabour'" in invoke("all", "--networks", "sabour", "--out", tmp_path, expect=2)
    assert not list(tmp_path.iterdir())


def test_the_readme_s_table_is_that_of_the_records() -> None:
    root = Path(__file__).parents[2]
    text, results = (root / "README.md").read_text(), root / "results" / "studies"
    if any((results / name).is_dir() for name in STUDIES):
        assert replace_block(text, "studies", all_lines(results)) == text, (
            "stale: run `shortcaps study all --report-only --readme README.md`"
        )
    else:
        assert "<!-- studies" not in text, "a table needs records"


def invoke(*arguments: object, expect: int = 0) -> str:
    result = CliRunner().invoke(app, ["study", *map(str, arguments)])
    if expect == 0:
        assert result.exit_code == 0, result.output
    else:
        assert result.exception is not None
    return result.output if expect == 0 else str(result.exception)


def test_the_command_reports_from_records_alone(copy: Places, tmp_path: Path) -> None:
    results = tmp_path / "out" / "quick"
    shutil.copytree(copy.results, results)
    (results / "affine.json").unlink()
    output = invoke("affine", "--quick", "--report-only", "--json", "--out", tmp_path / "out")
    (found,) = json.loads(output)
    assert found["study"] == "affine"
    assert (results / "affine.json").is_file()


def test_the_command_lists_what_it_would_do(copy: Places, tmp_path: Path) -> None:
    output = invoke(
        "affine",
        "--quick",
        "--plan",
        "--networks",
        "cnn-23k",
        "--seeds",
        1,
        "--out",
        tmp_path / "o",
        "--train-in",
        tmp_path / "t",
    )
    assert "to train" in output
    assert "minutes of training" in output


def test_help_and_docs_name_every_study() -> None:
    output = invoke("--help")
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()
    for name in STUDIES:
        assert name in output
        assert f"| `{name}` |" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["afine"], "unknown study 'afine': choose one of affine, .*did you mean affine"),
        (["affine", "--networks", "cnn-23"], "unknown network 'cnn-23'"),
        (["affine", "--networks", ","], "names no network"),
        (
            ["affine", "--quick", "--report-only", "--readme", "README.md"],
            "--readme takes the results of whole studies",
        ),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    import re

    said = invoke(*arguments, "--out", tmp_path, expect=2)
    assert re.search(message, said), said
    assert "\n" not in said
