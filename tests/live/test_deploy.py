"""The documentation and the files to start from name only what is there, and all of it."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from assay.live import settings
from assay.record import catalogue
from assay.serving.baselines.orders import ORDERS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "gateway.md"
COMMANDS = ("gateway", "engine", "top", "traces")
TABLES: dict[str, type[msgspec.Struct]] = {
    "setting": settings.Settings,
    "of an `[[engine]]`": settings.EngineSettings,
    "of a `[[key]]`": settings.KeySettings,
    "of a `[[model]]`": settings.ModelSettings,
    "of a `[[discover]]`": settings.DiscoverSettings,
}


def flags(command: click.Command) -> set[str]:
    return {name for option in command.params for name in option.opts} | {"-h", "--help"}


def command(name: str) -> click.Command:
    module, _, part = name.partition(" ")
    found: click.Command = getattr(importlib.import_module(f"assay.cli.{module}"), part or "command")
    return found


def code(text: str) -> list[str]:
    """Whole command lines: of fences and of single backticks."""
    fences = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for fence in fences for line in fence.replace("\\\n", " ").splitlines()]
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return lines + re.findall(r"`([^`\n]+)`", plain)


def spoken(text: str) -> list[tuple[str, str]]:
    """(command, flag) for every flag in a line that calls one of ours."""
    found = []
    for line in code(text):
        for call in re.findall(rf"\bassay (traces get|{'|'.join(COMMANDS)})\b([^&|;]*)", line):
            found += [(call[0], flag) for flag in re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", call[1])]
    return found


def rows(head: str) -> dict[str, str]:
    """The table of the page that begins with this head: the first column to the second."""
    lines = PAGE.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head} |")) + 2
    table = {}
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        name, default, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        table[name.strip("`")] = default.strip("`")
    return table


def manifests(name: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


# ------------------------------------------------------------------------------------------------ documentation


@pytest.mark.parametrize("head", TABLES)
def test_the_tables_have_every_setting_and_its_default(head: str) -> None:
    told = rows(head)
    there = {field.name: field for field in msgspec.structs.fields(TABLES[head])}
    assert set(told) == set(there)
    for name, field in there.items():
        if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
            assert told[name] == "required", name
        elif field.default is None:
            assert told[name] in {f.name for f in msgspec.structs.fields(settings.Settings)}, name
        else:
            value = tomllib.loads(f"value = {told[name]}")["value"]
            expected = field.default
            assert (tuple(value) if isinstance(value, list) else value) == expected, name
            assert isinstance(value, list) or type(value) is type(expected), name


@pytest.mark.parametrize("page", [PAGE, ROOT / "README.md"])
def test_every_flag_of_ours_exists(page: Path) -> None:
    calls = spoken(page.read_text())
    assert ("gateway", "--engines") in calls
    for name, flag in calls:
        assert flag in flags(command(name)), f"assay {name} {flag}"


def test_flags_in_prose_are_of_the_gateway_the_view_or_an_engine() -> None:
    ours = flags(command("gateway")) | flags(command("top"))
    theirs = {"--enable-prompt-tokens-details", "--kv-events-config", "--page-size", "--enable-metrics",
              "--enable-cache-report", "--metrics", "--kv-transfer-config", "--disaggregation-mode",
              "--disaggregation-bootstrap-port"}  # fmt: skip
    text = re.sub(r"```.*?```", "", PAGE.read_text(), flags=re.DOTALL)
    found = {flag for piece in re.findall(r"`([^`\n]+)`", text) for flag in re.findall(r"(?<!\S)(--[a-z-]+)", piece)}
    assert found <= ours | theirs | {"--policies", "--fleet", "--trace"}, found - ours - theirs


def test_every_order_is_named_and_every_named_order_exists() -> None:
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith("| `order`"))
    assert set(re.findall(r"`([a-z]+)`", line)) - {"order"} == {*ORDERS, *catalogue.offering("order", "serving")}


def test_settings_in_the_page_are_settings() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        found = settings.read(block.encode(), "docs/gateway.md")
        assert found.engine or found.model or found.discover


def test_the_page_names_all_metrics_and_no_others() -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("uvloop")
    from assay.live.counters import exposition
    from assay.live.gateway import Gateway

    page = exposition(Gateway(settings.Settings())).decode()
    exposed = set(re.findall(r"^# TYPE (assay_gateway_\w+) ", page, re.MULTILINE))
    assert set(re.findall(r"`(assay_gateway_\w+)`", PAGE.read_text())) == exposed


def test_links_lead_somewhere() -> None:
    text = PAGE.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        linked = (PAGE.parent / path).resolve() if path else PAGE
        assert linked.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in heads}, target


# ------------------------------------------------------------------------------------------------ files


def test_the_example_is_read_as_it_stands_and_with_everything_switched_on() -> None:
    text = (DEPLOY / "gateway.toml").read_text()
    assert [engine.name for engine in settings.read(text.encode()).engine] == ["one", "two"]
    every = re.sub(r"^# ?(?=\[\[|[a-z_0-9]+ = )", "", text, flags=re.MULTILINE).replace('"…"', f'"{"0" * 64}"')
    read = settings.read(every.encode())
    assert read.shadow and read.log and read.tls_key and read.engine[1].events
    assert [key.tenant for key in read.key] == ["acme", "operations"]


def test_the_config_map_holds_settings() -> None:
    config, deployment, service = manifests("kubernetes.yaml")
    read = settings.read(config["data"]["gateway.toml"].encode())
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > sleep + read.grace
    assert container["ports"][0]["containerPort"] == read.port
    assert read.host == "0.0.0.0"  # probes come from outside
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"]["type"] == "Recreate"
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert all(key.env or key.sha256 for key in read.key)


def test_commands_in_manifests_are_understood() -> None:
    (compose,) = manifests("compose.yaml")
    _, deployment, _ = manifests("kubernetes.yaml")
    calls = [service["command"] for service in compose["services"].values()]
    calls += [deployment["spec"]["template"]["spec"]["containers"][0]["args"]]
    unit = (DEPLOY / "assay-gateway.service").read_text()
    calls += [shlex.split(line)[1:] for line in re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)]
    docker = (DEPLOY / "Dockerfile").read_text()
    calls += [msgspec.json.decode(line) for line in re.findall(r"^CMD (.+)$", docker, re.MULTILINE)]
    assert len(calls) == 6
    for name, *arguments in calls:
        command(name).make_context(name, list(arguments))


def test_compose_engines_are_those_the_gateway_asks() -> None:
    (compose,) = manifests("compose.yaml")
    services = compose["services"]
    asked = re.findall(r"http://([\w-]+):(\d+)", " ".join(services["gateway"]["command"]))
    assert asked
    for name, port in asked:
        arguments = services[name]["command"]
        assert arguments[arguments.index("--port") + 1] == port
        assert name in services["gateway"]["depends_on"]
    assert all(str(port).startswith("127.0.0.1:") for port in services["gateway"]["ports"])  # it has no keys


def test_the_image_copies_what_the_package_needs() -> None:
    docker = (DEPLOY / "Dockerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (.+) \S+$", docker, re.MULTILINE) for name in line.split()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"src", "pyproject.toml", "constraints.txt", project["readme"], *project["license-files"]} == copied
    assert all((ROOT / name).exists() for name in copied)
    assert re.search(r"^USER (?!0|root)", docker, re.MULTILINE)


def test_the_unit_waits_longer_than_the_gateways_grace() -> None:
    unit = (DEPLOY / "assay-gateway.service").read_text()
    wait = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert wait is not None
    assert int(wait[1]) > settings.read((DEPLOY / "gateway.toml").read_bytes()).grace


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    unit = (DEPLOY / "assay-gateway.service").read_text().replace("/opt/assay/bin/assay", f'"{sys.executable}"')
    path = tmp_path / "assay-gateway.service"
    path.write_text(unit)
    ran = subprocess.run([analyze, "verify", str(path)], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
