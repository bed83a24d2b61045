"""Files → document trees: every way in which a file can be wrong is a problem with its line, never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pointsman.router.decode import Decoded
from pointsman.router.policy import Target
from pointsman.router.problem import Severity
from pointsman.sidecar.policy_file import MAX_FILE_BYTES, load, read
from pointsman.sidecar.yaml_tree import MAX_DEPTH, MAX_FILE_PROBLEMS, MAX_NODES

EXAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "examples"

MODEL = """apiVersion: pointsman.dev/v1alpha1
kind: Model
metadata: {name: m}
spec:
  versions:
    - {name: v1, endpoints: [{address: "127.0.0.1:9001"}]}
"""
ROUTE = """apiVersion: pointsman.dev/v1alpha1
kind: Route
metadata: {name: r}
spec: {targets: [m]}
"""
SETTINGS = """apiVersion: pointsman.dev/v1alpha1
kind: Settings
metadata: {name: default}
spec: %s
"""


def load_text(tmp_path: Path, text: str | bytes) -> Decoded:
    file = tmp_path / "policy.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(file)


def errors(decoded: Decoded, tmp_path: Path) -> list[str]:
    return [
        problem.render().replace(f"{tmp_path}/", "")
        for problem in decoded.problems
        if problem.severity is Severity.ERROR
    ]


def test_several_documents_in_a_file_make_one_policy(tmp_path: Path) -> None:
    decoded = load_text(tmp_path, f"---\n{MODEL}---\n{ROUTE}---\n# nothing here\n---\n")
    assert () == decoded.problems
    assert decoded.policy is not None
    assert ["m"] == [model.name for model in decoded.policy.models]


def test_a_directory_is_read_in_sorted_order_without_hidden_and_other_files(tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_text(ROUTE)
    (tmp_path / "a.yaml").write_text(MODEL)
    (tmp_path / ".hidden.yaml").write_text("kind: [")
    (tmp_path / "notes.txt").write_text("kind: [")
    documents, problems = read(tmp_path)
    assert () == problems
    assert [str(tmp_path / "a.yaml"), str(tmp_path / "b.yml")] == [document.file for document in documents]


def test_a_mounted_directory_of_links_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "a.yaml").write_text(MODEL + "---\n" + ROUTE)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    decoded = load(tmp_path)
    assert () == decoded.problems


def test_problems_of_several_files_name_their_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MODEL.replace("spec:", "spec:\n  provder: x"))
    (tmp_path / "b.yaml").write_text(ROUTE.replace("[m]", "[n]"))
    lines = errors(load(tmp_path), tmp_path)
    assert lines[0].startswith("a.yaml:5: Model m spec.provder: ")
    assert lines[1].startswith('b.yaml:4: Route r spec.targets[0]: found "n"')
    assert 2 == len(lines)


UNREADABLE = [
    ("", "there is no policy document"),
    ("# only a comment\n", "there is no policy document"),
    ("---\n---\n", "there is no policy document"),
    (b"\xff\xfe\x00", "policy.yaml:1: byte 0 is not UTF-8"),
    (b"a: b\nc: \xe9\n", "policy.yaml:2: byte 8 is not UTF-8"),
    (b"a: b\nc: \x00\n", "policy.yaml:2: there is a character that YAML does not allow"),
    (b"\x7fELF\x02\x01\x01\x00", "policy.yaml:1: "),
    ("a: b\n\tc: d\n", "policy.yaml:2: this is not YAML"),
    ("a:\n\t- b\n", "indent with spaces, not with tabs"),
    ("a: [\n", "policy.yaml:2: this is not YAML"),
    ("a: b: c\n", "policy.yaml:1: this is not YAML"),
    ('a: "\\ud800"\n', "policy.yaml:1: "),
    ("%YAML 9.9\n---\na: b\n", "policy.yaml:1: "),
    ("just text\n", 'policy.yaml:1: found "just text", expected a mapping with apiVersion'),
    ("- a\n", "policy.yaml:1: found a list, expected a mapping"),
]


@pytest.mark.parametrize(("content", "message"), UNREADABLE)
def test_a_file_that_is_no_policy_is_a_problem(tmp_path: Path, content: str | bytes, message: str) -> None:
    decoded = load_text(tmp_path, content)
    assert decoded.policy is None
    lines = errors(decoded, tmp_path)
    assert message in lines[0], lines


SURPRISES = [
    ("{answerHeaders: yes}", ["spec.answerHeaders", '"yes"', "boolean", "true or false"]),
    ("{answerHeaders: Off}", ["spec.answerHeaders", '"Off"']),
    ("{limits: {bodyBytes: 0100}}", ["spec.limits.bodyBytes", '"0100"', "octal"]),
    ("{limits: {bodyBytes: 0o100}}", ['"0o100"', "octal"]),
    ("{limits: {bodyBytes: 1_000}}", ['"1_000"', "without _"]),
    ("{limits: {bodyBytes: 0b11}}", ['"0b11"']),
    ("{limits: {bodyBytes: 1:30}}", ['"1:30"', "base 60"]),
    ("{limits: {bodyBytes: " + "9" * 5000 + "}}", ["spec.limits.bodyBytes", "5000 characters"]),
    ("{limits: {bodyBytes: .nan}}", ["spec.limits.bodyBytes", ".nan"]),
    ("{tracing: {sampleRatio: 1e999}}", ["sampleRatio", "1e999", "a number from 0 to 1"]),
    ("{admin: &a '127.0.0.1:1', listen: *a}", ["spec.admin", "anchors and aliases"]),
    ("{admin: *nowhere}", ["spec.admin", "aliases"]),
    ("{<<: {admin: '127.0.0.1:1'}}", ["merge keys"]),
    ("{admin: !!str '127.0.0.1:1'}", ["spec.admin", "tags"]),
    ("!!python/object/apply:os.system ['true']", ["spec", "tags"]),
    ("{admin: '127.0.0.1:1', admin: '127.0.0.1:3'}", ["spec.admin", '"admin" again', "on line 4"]),
    ("{[a]: b}", ["a key must be a word"]),
    ('{stateDir: "a\\nb"}', ["spec.stateDir", '"a\\nb"', "a file path"]),
    ("{stateDir: ''}", ["spec.stateDir", '""']),
    ("{stateDir: }", ["spec.stateDir", "found nothing"]),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "words"), SURPRISES, ids=range(len(SURPRISES)))
def test_a_surprise_of_yaml_is_one_problem_at_its_line(tmp_path: Path, spec: str, words: list[str]) -> None:
    decoded = load_text(tmp_path, SETTINGS % spec)
    assert decoded.policy is None
    (line,) = errors(decoded, tmp_path)
    assert line.startswith("policy.yaml:4: Settings default ")
    assert [] == [word for word in words if word not in line], line


def test_hexadecimal_marks_and_quoted_words_are_read(tmp_path: Path) -> None:
    held = MODEL.replace("name: v1,", 'name: "1.0", slice: {cgroup: "on", mark: 0x8001, markMask: 0xffff},')
    decoded = load_text(tmp_path, held + "---\n" + ROUTE)
    assert decoded.policy is not None
    version = decoded.policy.models[0].versions[0]
    assert version.slice is not None
    assert ("1.0", "on", 0x8001) == (version.name, version.slice.cgroup, version.slice.mark)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    assert () == load_text(tmp_path, b"\xef\xbb\xbf" + (MODEL + "---\n" + ROUTE).encode()).problems


def test_documents_before_a_syntax_error_are_still_checked_and_no_name_is_missed(tmp_path: Path) -> None:
    decoded = load_text(tmp_path, ROUTE.replace("[m]", "[m], switch: never") + "---\nkind: [\n---\n" + MODEL)
    lines = errors(decoded, tmp_path)
    assert 2 == len(lines), lines
    assert "never" in lines[0]
    assert "this is not YAML" in lines[1]


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    (line,) = errors(load_text(tmp_path, b"#" * (MAX_FILE_BYTES + 1)), tmp_path)
    assert "larger than 4 MiB" in line


def test_a_missing_file_and_a_pipe_are_refused(tmp_path: Path) -> None:
    (line,) = errors(load(tmp_path / "none.yaml"), tmp_path)
    assert "none.yaml: it cannot be read: No such file or directory" == line
    os.mkfifo(tmp_path / "pipe.yaml")
    (line,) = errors(load(tmp_path), tmp_path)
    assert "not a regular file" in line


def test_an_empty_directory_is_refused_and_an_empty_file_beside_others_is_a_warning(tmp_path: Path) -> None:
    (line,) = errors(load(tmp_path), tmp_path)
    assert "there is no policy document here" in line
    (tmp_path / "a.yaml").write_text(MODEL + "---\n" + ROUTE)
    (tmp_path / "b.yaml").write_text("")
    decoded = load(tmp_path)
    assert decoded.policy is not None
    assert ["the file holds no document"] == [problem.message for problem in decoded.problems]


@pytest.mark.parametrize("auth", ["0123", "yes", "{a: 1, sk-1: yes}", "{sk-1: 1, sk-1: 2}", "&sk-1 x", "1_1"])
def test_nothing_below_auth_is_shown(tmp_path: Path, auth: str) -> None:
    decoded = load_text(tmp_path, MODEL.replace("name: v1,", f"name: v1, auth: {auth},"))
    assert decoded.policy is None
    for problem in decoded.problems:
        for secret in ("0123", "yes", "sk-1", "1_1"):
            assert secret not in problem.render()


def test_problems_of_one_file_are_counted_out(tmp_path: Path) -> None:
    _, problems = read_text(tmp_path, "a: [" + "yes, " * 5000 + "]\n")
    assert MAX_FILE_PROBLEMS == len(problems)


def read_text(tmp_path: Path, text: str) -> tuple[object, tuple[object, ...]]:
    (tmp_path / "policy.yaml").write_text(text)
    return read(tmp_path / "policy.yaml")


@pytest.mark.parametrize("depth", [MAX_DEPTH, 2_000_000])
def test_deep_nesting_stops_the_reading(tmp_path: Path, depth: int) -> None:
    lines = errors(load_text(tmp_path, SETTINGS % ("[" * depth + "]" * depth)), tmp_path)
    assert ["policy.yaml:4: values are nested deeper than 32; the rest of the file is not read"] == lines


def test_too_many_values_stop_the_reading(tmp_path: Path) -> None:
    lines = errors(load_text(tmp_path, "a: [" + "1," * MAX_NODES + "]"), tmp_path)
    assert ["policy.yaml:1: the file has more than 200000 values; the rest is not read"] == lines


@pytest.mark.parametrize("name", sorted(file.name for file in EXAMPLES.glob("*.yaml")))
def test_the_examples_are_accepted_without_a_word(name: str) -> None:
    decoded = load(EXAMPLES / name)
    assert [] == [problem.render() for problem in decoded.problems]
    assert decoded.policy is not None


def test_the_canary_example_has_the_three_targets_of_its_text() -> None:
    policy = load(EXAMPLES / "canary.yaml").policy
    assert policy is not None
    assert {
        "127.0.0.1:9001": "support-chat@v2.2",
        "127.0.0.1:9002": "support-chat@v2.3-beta",
        "127.0.0.1:9003": "small-chat@v1",
    } == {
        endpoint.address: str(Target(model.name, version.name))
        for model in policy.models
        for version in model.versions
        for endpoint in version.endpoints
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=20,
)


@given(st.lists(JSON, min_size=1, max_size=3))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_dumped_value_raises(tmp_path: Path, values: list[object]) -> None:
    decoded = load_text(tmp_path, yaml.safe_dump_all(values, allow_unicode=True).encode("utf-8", "replace"))
    for problem in decoded.problems:
        assert problem.file
        assert problem.render().isprintable()


@given(
    st.binary(max_size=200)
    | st.text(st.sampled_from("ab:-{}[]&*!|>'\"#%@`,? \n\t0x1._<~"), max_size=80).map(str.encode)
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_raise(tmp_path: Path, content: bytes) -> None:
    decoded = load_text(tmp_path, content)
    assert decoded.policy is None
    assert decoded.problems


@given(st.integers(0, 2000), st.sampled_from(["", "\t", "\x00", "é", ":", "}", "&a ", "*a", "- ", "yes", '"', "\n"]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_to_a_good_policy_raises(tmp_path: Path, place: int, damage: str) -> None:
    text = (EXAMPLES / "canary.yaml").read_text()
    decoded = load_text(tmp_path, text[:place] + damage + text[place + 1 :])
    assert (decoded.policy is None) is any(problem.severity is Severity.ERROR for problem in decoded.problems)


def test_a_path_that_cannot_even_be_looked_at_is_a_problem_not_a_fault(tmp_path: Path) -> None:
    # A name too long fails as a folder without permission does, and does so for root too.
    decoded = load(tmp_path / ("x" * 300))
    assert decoded.policy is None
    assert [Severity.ERROR] == [problem.severity for problem in decoded.problems]
