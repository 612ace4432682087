"""What each value of Table 2 does to the action mix and to monotonicity, by the oracle; the table and the figure."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from cases import oracle_of
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mdl_torch import Action, MDLConfig
from mdl_torch.config import CHANNELS, preset_config
from mdl_torch.figures import ACTION_STYLES, SIGNAL_STYLES, STYLE, check_suffix, style
from mdl_torch.sensitivity import FIELDS, draw, sensitivity, sensitivity_figure, sensitivity_table, split_dims

POINTS = 7


@pytest.fixture(scope="module")
def result():
    return sensitivity(MDLConfig(), POINTS)


def series(result, field):
    (found,) = [s for s in result.series if s.field == field]
    return found


def setting(result, field, value):
    (found,) = [s for s in series(result, field).settings if s.value == value]
    return found


def values(result, field):
    return [s.value for s in series(result, field).settings]


# --- what is measured -------------------------------------------------------------------------------------------------


def by_hand(config, points):
    """The same with the oracle: mix, falls, slopes and range."""
    oracle, axis = oracle_of(config), np.linspace(0, 1, points)
    gated = oracle.head(*np.meshgrid(axis, axis, axis, indexing="ij"))[2]
    actions = oracle.action(gated)
    up = [np.diff(gated, axis=0), np.diff(gated, axis=1), -np.diff(gated, axis=2)]
    return (
        [float((actions == action).mean()) for action in Action],
        [float((step < -1e-12).mean()) for step in up],
        [float(step.min()) / (axis[1] - axis[0]) for step in up],
        list(oracle.exact_range()),
    )


CHANGES = [
    ("sigma", 0.1, {"sigma": 0.1}),
    ("dim", 24, {"dim": 24, "subspace_dims": (8, 7, 9)}),
    ("subspace_dims", (8, 4, 4), {"subspace_dims": (8, 4, 4)}),
    ("cross_leakage", 0.3, {"cross_leakage": 0.3}),
    ("subspace_gains[1]", 1.4, {"subspace_gains": (1.0, 1.4, 0.5)}),
    ("subspace_gains[2]", 0.25, {"subspace_gains": (1.0, 0.7, 0.25)}),
    ("risk_gain[0]", 0.0, {"risk_gain": (0.0, 0.5)}),
    ("risk_gain[1]", 1.0, {"risk_gain": (0.5, 1.0)}),
    ("gate", (0.0, 1.0), {"gate": (0.0, 1.0)}),
    ("bias", -0.5, {"bias": -0.5}),
]


@pytest.mark.parametrize(("field", "value", "change"), CHANGES, ids=[field for field, _, _ in CHANGES])
def test_a_setting_is_what_the_oracle_finds(result, field, value, change):
    found = setting(result, field, value)
    assert not found.configured
    mix, falling, slopes, norms = by_hand(MDLConfig(**change), POINTS)
    assert list(found.action_mix.values()) == pytest.approx(mix, abs=1e-12)
    assert list(found.falling.values()) == pytest.approx(falling, abs=1e-12)
    assert list(found.smallest_slope.values()) == pytest.approx(slopes, abs=1e-9)
    assert list(found.norm_range) == pytest.approx(norms, abs=1e-12)


def test_the_configured_values_give_the_figures_of_the_paper_preset():
    """Those that test_theory.py pins, on 41 points; the worst falls there, times 40."""
    found = setting(sensitivity(MDLConfig(), 41, fields=["sigma"]), "sigma", 0.2)
    assert [found.falling[c] for c in CHANNELS] == pytest.approx([0.2766, 0.0168, 0.0006], abs=5e-4)
    worst = [-0.00373 * 40, -0.00065 * 40, -0.00032 * 40]
    assert [found.smallest_slope[c] for c in CHANNELS] == pytest.approx(worst, abs=4e-4)
    assert found.action_mix["opt_out"] == pytest.approx(0.007, abs=1e-3)
    assert found.norm_range == pytest.approx((1.2523, 3.2806), abs=5e-5)


def test_every_value_of_table_2_has_its_series_with_the_configured_marked(result):
    assert tuple(s.field for s in result.series) == FIELDS
    (configured,) = {
        json.dumps(dataclasses.asdict(s) | {"value": None}) for v in result.series for s in v.settings if s.configured
    }
    assert json.loads(configured)["norm_range"] == pytest.approx([1.2523, 3.2806], abs=5e-5)
    own = [[s.value for s in v.settings if s.configured] for v in result.series]
    assert own == [[v] for v in (0.2, 16, (5, 5, 6), 0.1, 1.0, 0.7, 0.5, 0.5, 0.5, (0.3, 0.7), 0.0)]
    for found in result.series:
        assert 5 <= len(found.settings) <= 8
        for one in found.settings:
            assert sum(one.action_mix.values()) == pytest.approx(1, abs=1e-12)
            assert list(one.action_mix) == [action.label for action in Action]
            assert list(one.falling) == list(one.smallest_slope) == list(CHANNELS)
            assert all((one.falling[c] > 0) == (one.smallest_slope[c] < -1e-10) for c in CHANNELS)


def test_settings_lie_around_the_configured_value(result):
    assert values(result, "sigma") == [0.1, 0.15, 0.2, 0.25, 0.3, 0.4]
    assert values(result, "dim") == [8, 12, 16, 20, 24, 32]
    assert values(result, "cross_leakage") == [0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4]
    assert values(result, "risk_gain[1]") == [0, 0.25, 0.5, 0.75, 1]
    assert values(result, "bias") == [-0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5]
    assert all(sum(dims) == 16 for dims in values(result, "subspace_dims"))
    assert all(sum(pair) == pytest.approx(1, abs=1e-12) for pair in values(result, "gate"))
    other = sensitivity(MDLConfig(sigma=1.0, bias=2.0, gate=(0.2, 0.4)), 2, fields=["sigma", "gate", "bias"])
    assert [s.field for s in other.series] == ["sigma", "gate", "bias"]
    assert values(other, "sigma") == [0.5, 0.75, 1.0, 1.25, 1.5, 2.0]
    assert values(other, "bias") == [1.5, 1.75, 1.9, 2.0, 2.1, 2.25, 2.5]
    assert values(other, "gate") == [(0.0, 0.6), (0.2, 0.4), (0.4, 0.2), (0.6, 0.0)]


def test_what_the_configuration_refuses_is_not_listed():
    tight = sensitivity(MDLConfig(cross_leakage=0.3), 2, fields=["cross_leakage", "subspace_gains[2]"])
    assert values(tight, "cross_leakage") == [0.2, 0.25, 0.3, 0.35, 0.4]
    assert values(tight, "subspace_gains[2]") == [0.375, 0.5, 0.625, 0.75, 1.0]  # 0.25 is below ε_c
    assert values(sensitivity(MDLConfig(dim=3, subspace_dims=(1, 1, 1)), 2, fields=["dim"]), "dim") == [3, 4, 6]


def test_a_setting_without_a_range_is_not_listed_and_a_configuration_without_one_is_refused():
    """tanh is 1 everywhere once the bias is large."""
    near = sensitivity(MDLConfig(bias=5.0), 2, fields=["bias"])
    assert values(near, "bias") == [4.5, 4.75, 4.9, 5.0, 5.1, 5.25]  # not 5.5
    with pytest.raises(ValueError, match="hardly differs over the cube"):
        sensitivity(MDLConfig(bias=50.0), 2)


def test_a_fitted_range_is_refitted_and_thresholds_are_kept(result):
    fitted = MDLConfig(norm_range=(2.0, 3.0), thresholds=(0.9, 0.5, 0.1))
    found = sensitivity(fitted, POINTS, fields=["sigma"])
    assert found.config == fitted.to_dict()
    assert [s.norm_range for s in found.series[0].settings] == [s.norm_range for s in result.series[0].settings]
    assert [s.value for s in found.series[0].settings if s.configured] == [0.2]
    mix = setting(found, "sigma", 0.2).action_mix
    assert list(mix.values()) == pytest.approx(by_hand(replace(fitted, norm_range=None), POINTS)[0], abs=1e-12)
    assert any("exact range of each setting; the configured 2:3 is not used" in note for note in found.notes)
    assert any("Thresholds stay at 0.9, 0.5, 0.1" in note for note in found.notes)


@pytest.mark.parametrize(
    ("switch", "without"),
    [
        ("value_encoding", {"sigma"}),
        ("orthogonal_subspaces", {"subspace_dims", "cross_leakage"}),
        ("risk_modulation", {"risk_gain[0]", "risk_gain[1]"}),
        ("alpha_gate", {"gate"}),
        ("risk_inversion", set()),
    ],
)
def test_values_of_an_ablated_mechanism_are_left_out_and_named(switch, without):
    looked_for = {"gate", *without} if switch != "alpha_gate" else {"bias", *without}
    found = sensitivity(MDLConfig().ablate(switch), 3, fields=looked_for)
    assert {s.field for s in found.series} == looked_for - without
    named = [note.split(": ")[1] for note in found.notes if f"without {switch}" in note]
    assert named == ([", ".join(field for field in FIELDS if field in without) + "."] if without else [])


def test_a_named_basis_has_one_dimension():
    found = sensitivity(preset_config("certified"), POINTS, fields=["sigma", "dim"])
    assert [s.field for s in found.series] == ["sigma"]
    assert "D is left out: the basis 'certified' has but one." in found.notes
    assert setting(found, "sigma", 0.2).falling == {"relevance": 0, "reliability": 0, "risk": 0}
    assert min(setting(found, "sigma", 0.2).smallest_slope.values()) > 0.02


def test_several_bases_are_measured_as_their_mean():
    config = MDLConfig(bases=2, seed=0)
    found = setting(sensitivity(config, 3, fields=["sigma"]), "sigma", 0.2)
    each = [by_hand(replace(config, bases=1, seed=seed), 3)[3] for seed in (0, 1)]
    assert list(found.norm_range) == pytest.approx(np.mean(each, axis=0), abs=1e-12)


def test_it_is_json(result):
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain == result.to_dict()
    assert plain["points"] == POINTS
    assert plain["series"][2]["settings"][0]["value"] == [5, 5, 6]
    assert any("proves nothing about the points between" in note for note in plain["notes"])
    assert any("keeps C_final within [0, 1]" in note for note in plain["notes"])


@given(dim=st.integers(3, 40), ratio=st.tuples(*[st.integers(1, 40)] * 3))
def test_dimensions_are_split_as_near_to_the_ratio_as_it_goes(dim, ratio):
    def miss(split):
        return sum((d - dim * r / sum(ratio)) ** 2 for d, r in zip(split, ratio, strict=True))

    found = split_dims(dim, ratio)
    assert sum(found) == dim
    assert min(found) >= 1
    every = [(a, b, dim - a - b) for a in range(1, dim - 1) for b in range(1, dim - a)]
    assert miss(found) <= min(map(miss, every)) + 1e-8


@pytest.mark.parametrize(
    ("config", "points", "error", "message"),
    [
        ("paper", 3, TypeError, "config must be an MDLConfig, got str"),
        (MDLConfig(), 3.0, TypeError, "points must be an integer, got 3.0"),
        (MDLConfig(), True, TypeError, "points must be an integer, got True"),
        (MDLConfig(), 1, ValueError, "points must be at least 2, got 1"),
    ],
)
def test_bad_arguments_are_named(config, points, error, message):
    with pytest.raises(error, match=message):
        sensitivity(config, points)


def test_an_unknown_field_is_named():
    with pytest.raises(ValueError, match="unknown field 'sgima'; did you mean 'sigma'"):
        sensitivity(MDLConfig(), 2, fields=["sgima"])


def test_progress_goes_to_standard_error(capsys):
    sensitivity(MDLConfig(), 2, fields=["gate"], progress=True)
    shown = capsys.readouterr()
    assert "sensitivity: 100%" in shown.err
    assert shown.out == ""
    sensitivity(MDLConfig(), 2, fields=["gate"])
    assert capsys.readouterr().err == ""


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_shows_every_setting_in_100_columns(result):
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(sensitivity_table(result), highlight=False)
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 100
    assert "…" not in captured.get()
    rows = [line.split() for line in lines]
    for found in result.series:
        assert any(row[:1] == [found.symbol] for row in rows)
    one = setting(result, "gate", (0.3, 0.7))
    numbers = [f"{100 * share:.1f}" for share in one.action_mix.values()]
    numbers += [f"{100 * share:.2f}" for share in one.falling.values()]
    numbers += [f"{slope:+.3f}" for slope in one.smallest_slope.values()]
    numbers += ["1.252", "3.281"]
    assert [">", "0.3:0.7", *numbers] in rows
    assert sum(row[:1] == [">"] for row in rows) == len(result.series)
    assert all(note in " ".join(captured.get().split()) for note in result.notes)


# --- the figure -------------------------------------------------------------------------------------------------------


@pytest.fixture
def drawn(result):
    with style():
        yield sensitivity_figure(result)


def test_the_figure_has_a_panel_for_each_value(drawn, result):
    *panels, legend = drawn.axes
    below, above = panels[::2], panels[1::2]
    assert len(below) == len(above) == len(result.series) == 11
    assert tuple(axes.get_xlabel() for axes in below) == FIELDS
    titles = [axes.get_title() for axes in above]
    assert titles[0] == "σ  width of the peaks"
    assert titles[4] == r"s$_{\mathrm{wm}}$  relevance gain"
    assert [axes.get_ylabel() for axes in (above[0], below[0])] == ["share of the cube, %", "share of steps, %"]
    words = [text.get_text() for text in legend.get_legend().get_texts()]
    assert words[:4] == ["opt_out", "silent", "supp", "active"]
    assert [word.split("$ ")[-1] for word in words[4:7]] == [
        "falls with rising M",
        "falls with rising R",
        "rises with rising A",
    ]
    assert words[7] == "configured value"
    assert any("proves nothing" in text.get_text() for text in drawn.texts)


def test_the_panels_draw_what_was_measured(drawn, result):
    number = FIELDS.index("cross_leakage")
    below, above = drawn.axes[2 * number : 2 * number + 2]
    settings = result.series[number].settings
    heights = np.array([[bar.get_height() for bar in bars] for bars in above.containers])
    np.testing.assert_allclose(heights.T, [[100 * x for x in s.action_mix.values()] for s in settings])
    assert above.containers[1][0].get_y() == above.containers[0][0].get_height()  # stacked
    lines = [line.get_ydata() for line in below.lines[:3]]
    np.testing.assert_allclose(np.transpose(lines), [[100 * x for x in s.falling.values()] for s in settings])
    labels = below.get_xticklabels()
    assert [label.get_text() for label in labels] == ["0", "0.05", "0.1", "0.15", "0.2", "0.3", "0.4"]
    assert [label.get_fontweight() == "bold" for label in labels] == [s.configured for s in settings]
    (mark,) = above.lines
    assert (mark.get_xdata()[0], mark.get_marker()) == (2, "v")


def test_it_is_legible_without_colour(drawn):
    """Bars by hatching and lightness, lines by marker and dash."""
    below, above = drawn.axes[:2]
    assert [bars[0].get_hatch() or "" for bars in above.containers] == [look.hatch for look in ACTION_STYLES.values()]
    assert len({(line.get_marker(), line.get_linestyle()) for line in below.lines[:3]}) == 3
    levels = [grey(look.color) for look in ACTION_STYLES.values()]
    assert min(np.diff(levels)) > 0.15
    assert list(ACTION_STYLES) == list(Action)
    assert list(SIGNAL_STYLES) == list(CHANNELS)


def grey(color):
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".SVG", b"<?xml")])
def test_the_figure_is_saved_as_its_suffix_says(result, tmp_path, suffix, start):
    first = draw(result, tmp_path / "new" / "folder" / f"first{suffix}")
    second = draw(result, str(tmp_path / f"second{suffix}"))
    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()


def test_an_unknown_suffix_is_refused_and_nothing_written(result, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf or \.svg, got '.*figure\.jpg'"):
        draw(result, tmp_path / "new" / "figure.jpg")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="got 'figure'"):
        check_suffix("figure")


def test_the_users_settings_stay_as_they_are():
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 31, "axes.grid": True}):
        with style():
            assert matplotlib.rcParams["font.size"] == STYLE["font.size"]
            assert matplotlib.rcParams["axes.grid"] is False
            assert Figure().dpi == STYLE["figure.dpi"]
        assert matplotlib.rcParams["font.size"] == 31


def test_without_matplotlib_the_extra_is_named(result, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install mdl_torch\[evaluate\]"):
        draw(result, tmp_path / "figure.png")
