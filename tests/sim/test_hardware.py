from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim import hardware
from assay.sim.hardware import Device, device, devices

NEEDED = """a100 a100-40g a800 h100 h200 b200 h800 h20 gb200 l4 l40s a40 a10g rtx4090 mi300x mi250x max1550 tpu-v5p
ascend910b xeon""".split()
every_device = pytest.mark.parametrize("record", devices(), ids=lambda record: record.name)


def test_the_devices_that_papers_use_are_there() -> None:
    assert [record.name for record in devices()] == NEEDED


@every_device
def test_every_value_has_a_source(record: Device) -> None:
    wanted = {*record.peak_flops, *hardware.PLAIN, "pcie_bw", "pcie_latency", "nic_bw", "nic_latency", "gpus_per_node"}
    assert wanted <= set(record.source)
    assert all(source.strip() for source in record.source.values())


@every_device
def test_values_are_in_si_units_and_plausible(record: Device) -> None:
    assert {"bf16", "fp32"} <= set(record.peak_flops)
    assert all(1e12 < peak < 1e17 for peak in record.peak_flops.values())
    assert 1e10 < record.mem_bytes < 1e12
    assert 1e11 < record.mem_bw < 1e13
    assert 1e6 < record.l2_bytes < record.mem_bytes
    assert 0 < record.idle_watts < record.tdp_watts < 2000
    assert 1e-7 < record.launch < 1e-4
    assert 0 < record.usd_per_hour < 20
    for link in (record.nvlink, record.pcie, record.nic):
        assert 1e-7 < link.latency < 1e-3
        assert 1e9 < link.bandwidth < record.mem_bw
    assert record.nvlink.bandwidth >= record.pcie.bandwidth


@given(st.sampled_from(NEEDED), st.randoms(use_true_random=False))
def test_case_does_not_matter(name: str, random: object) -> None:
    mixed = "".join(letter.upper() if random.random() < 0.5 else letter for letter in name)  # type: ignore[attr-defined]
    assert device(mixed) is device(name)


@pytest.mark.parametrize(("alias", "name"), [("RTX-4090", "rtx4090"), ("a100-80gb", "a100"), ("910b", "ascend910b")])
def test_aliases(alias: str, name: str) -> None:
    assert device(alias).name == name


def test_an_unknown_device_is_one_line_with_the_nearest_names() -> None:
    with pytest.raises(BadInput, match=r"^unknown device 'h1oo': did you mean h100") as caught:
        device("h1oo")
    assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="there are a100, a100-40g"):
        device("zzzzzzzz")


@given(st.text(max_size=20))
def test_any_text_is_a_device_or_bad_input(text: str) -> None:
    try:
        assert device(text) in devices()
    except BadInput as error:
        assert "unknown device" in str(error)


def test_what_has_no_units_is_computed_in_bf16() -> None:
    assert device("a100").flops("fp8") == device("a100").flops("int4") == device("a100").flops("bf16") == 312e12
    assert device("h100").flops("fp8") == 1979e12
    assert device("h100").flops("fp16") == 989e12


def test_records_are_read_once() -> None:
    assert device("h100") is device("h100")


@pytest.mark.timed
def test_records_are_read_quickly() -> None:
    best = 1.0
    for _ in range(5):
        hardware._devices.cache_clear()
        start = time.process_time()
        device("h100")
        best = min(best, time.process_time() - start)
    assert best < 0.010
