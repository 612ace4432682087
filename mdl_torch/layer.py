"""The Memory Decision Layer: the five stages, one after the other."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from mdl_torch.calibration import UNFITTED, Calibration, digest
from mdl_torch.config import MDLConfig, check_norm_range, preset_config
from mdl_torch.encoding import ValueEncoder
from mdl_torch.errors import CheckpointError
from mdl_torch.fusion import MetaFusion
from mdl_torch.head import ConfidenceHead
from mdl_torch.outputs import INVALID, Action, Decision, Status
from mdl_torch.policy import ActionPolicy
from mdl_torch.stage import check_tensors, compute_dtype, no_autocast
from mdl_torch.subspace import SubspaceProjection

RELEVANCE_SLACK = 0.01
"""How far beyond [-1, 1] a relevance may lie and still be a rounded cosine (bfloat16 rounds 1 up to 1.0078)."""

GRID_POINTS = 41
"""Points along each signal of the grid of the cube that the exact range of ‖v_meta‖ is taken from."""

RANGE_TOLERANCE = 1e-9
"""How far two machines may differ in the exact range."""

FORMAT = 1
"""Version of the checkpoint's layout."""

FITTED = ("projection.basis", "head.norm_range", "policy.thresholds")
"""The buffers that a preset or a calibration may set; the others follow from the configuration."""


class Representation(NamedTuple):
    """What becomes of the signals: v_wm ``(*, D)``, what each channel adds ``(*, 3, D)``, v_meta, g_A ``(*)``."""

    relevance_vector: Tensor
    channels: Tensor
    meta: Tensor
    gain: Tensor


class MemoryDecisionLayer(nn.Module):
    """Decides from (M, R, A) whether retrieved memories deserve trust (Algorithm 1).

    v(s) → W_k v_k → v_meta = tanh(Σ) → C, α → C_final = C·(0.3 + 0.7α) → Active, Supp, Silent or Opt-Out.

    It has no parameters; its buffers are float64 and stay so. Bad values cannot raise in a graph: a row with a NaN, an
    infinity or a value out of range is Opt-Out with its status bit.

    Args:
        config: The configuration; the ``paper`` preset with the exact range of ‖v_meta‖ by default.
        calibration: Where range and thresholds in ``config`` came from, if they were fitted; see ``calibrated``.

    Example:
        >>> layer = MemoryDecisionLayer()
        >>> d = layer(*torch.tensor([0.7, 0.3, 0.5], dtype=torch.float64))
        >>> Action(d.action.item()), round(d.gated_confidence.item(), 6)
        (<Action.ACTIVE: 0>, 0.728299)
    """

    def __init__(self, config: MDLConfig | None = None, *, calibration: Calibration | None = None) -> None:
        super().__init__()
        if config is not None and not isinstance(config, MDLConfig):
            raise TypeError(f"config must be an MDLConfig, got {type(config).__name__}")
        self.config = config or MDLConfig()
        self.encoder = ValueEncoder(self.config)
        self.projection = SubspaceProjection(self.config)
        self.fusion = MetaFusion(self.config)
        self.head = ConfidenceHead(self.config, norm_range=self.config.norm_range or exact_norm_range(self.config))
        self.policy = ActionPolicy(self.config)
        self.calibration = calibration

    @classmethod
    def from_preset(cls, name: str) -> Self:
        """The layer of a preset, with the exact range.

        Raises:
            ValueError: No such preset; the nearest is named.
        """
        return cls(preset_config(name))

    def calibrated(self, calibration: Calibration) -> Self:
        """This layer with a fitted range and thresholds, as a copy; basis and device stay.

        Raises:
            CalibrationMismatchError: It was fitted for another configuration or basis.

        Example:
            >>> MemoryDecisionLayer().calibrated(Calibration.reference()).calibration_label.split(":")[0]
            'reference'
        """
        calibration.check_layer(self.config, self.basis)
        config = replace(self.config, norm_range=calibration.norm_range, thresholds=calibration.thresholds)
        return self._refitted(config, calibration.norm_range, calibration)

    def uncalibrated(self) -> Self:
        """This layer with the exact range and the default thresholds, as a copy; basis and device stay.

        Example:
            >>> fitted = MemoryDecisionLayer().calibrated(Calibration.reference())
            >>> fitted.uncalibrated().calibration_label
            'exact-range'
        """
        return self._refitted(self.config.uncalibrated(), self._exact_norm_range(), None)

    def _refitted(self, config: MDLConfig, norm_range: tuple[float, float], calibration: Calibration | None) -> Self:
        layer = copy.deepcopy(self)
        layer.config, layer.calibration = config, calibration
        layer.head.norm_range = self.head.norm_range.new_tensor(norm_range)
        layer.policy.thresholds = self.policy.thresholds.new_tensor(config.thresholds)
        return layer

    def encode(self, relevance: Tensor, reliability: Tensor, risk: Tensor) -> Tensor:
        """Value vectors v_wm, v_r and v_a of valid signals in [0, 1], all ``(*)`` of one dtype: ``(*, 3, D)``."""
        inverted = 1 - risk if self.config.risk_inversion else risk
        vectors: Tensor = self.encoder(torch.stack((relevance, reliability, inverted), dim=-1))
        return vectors

    def represent(self, relevance: Tensor, reliability: Tensor, risk: Tensor) -> Representation:
        """The fused representation of valid signals in [0, 1], all ``(*)`` of one dtype (Section 3.2)."""
        vectors = self.encode(relevance, reliability, risk)
        relevance_vector, _, risk_vector = vectors.unbind(-2)
        channels, gain = self.fusion.modulate(risk_vector, self.projection(vectors))
        return Representation(relevance_vector, channels, self.fusion(channels), gain)

    def forward(self, relevance: Tensor, reliability: Tensor, risk: Tensor) -> Decision:
        """Decide.

        Args:
            relevance: M, a cosine; clipped to [0, 1], since rounding makes 1.0000001 of a perfect match.
            reliability: R in [0, 1].
            risk: A in [0, 1].
                All three are floating-point tensors on one device, of shapes that broadcast to one shape ``(*)``.

        Raises:
            TypeError: An argument is not a floating-point tensor.
            ValueError: Shapes do not broadcast, or devices differ from each other or the layer's.
        """
        check_tensors(self.policy.thresholds, relevance=relevance, reliability=reliability, risk=risk)
        check_broadcast(relevance=relevance, reliability=reliability, risk=risk)
        dtype = compute_dtype(relevance, reliability, risk)
        with no_autocast(relevance):
            m, r, a = torch.broadcast_tensors(relevance.to(dtype), reliability.to(dtype), risk.to(dtype))
            status = signal_status(m, r, a)
            invalid = (status & INVALID) != 0
            m = torch.where(invalid, 0.0, m.clamp(0.0, 1.0))
            r = torch.where(invalid, 0.0, r)
            a = torch.where(invalid, 1.0, a)
            relevance_vector, _, meta, gain = self.represent(m, r, a)
            trust = self.head(relevance_vector, meta)
            action = self.policy(trust.gated_confidence)
            return Decision(
                action=torch.where(invalid, torch.full_like(action, int(Action.OPT_OUT)), action),
                status=status,
                relevance=m,
                reliability=r,
                risk=a,
                gain=torch.where(invalid, 0.0, gain),
                norm=torch.where(invalid, 0.0, trust.norm),
                confidence=torch.where(invalid, 0.0, trust.confidence),
                consistency=torch.where(invalid, 0.0, trust.consistency),
                gated_confidence=torch.where(invalid, 0.0, trust.gated_confidence),
            )

    @property
    def preset(self) -> str:
        """Name of the preset this layer follows, or ``custom``; a replaced basis makes it custom."""
        return self.config.preset if self._follows_seed() else "custom"

    @property
    def basis(self) -> str:
        """Fingerprint of the basis Q."""
        return self.projection.fingerprint()

    @property
    def calibration_label(self) -> str:
        """Where range and thresholds come from.

        Name and digest of the calibration; ``manual:`` and a digest if they were set by hand; else ``exact-range``.

        Example:
            >>> MemoryDecisionLayer(MDLConfig(norm_range=(1.0, 2.0))).calibration_label.split(":")[0]
            'manual'
        """
        if self.hand_set:
            return f"manual:{digest(self._held())}"
        return self.calibration.label if self.calibration else UNFITTED

    @property
    def hand_set(self) -> bool:
        """Whether range or thresholds are neither those of the calibration nor, without one, the default.

        Taken from the buffers, so that values count too that were loaded or changed in place.
        """
        if self.calibration:
            return self._held() != (self.calibration.norm_range, self.calibration.thresholds)
        return self._held() != (None, MDLConfig.thresholds)

    def _held(self) -> tuple[tuple[float, ...] | None, tuple[float, ...]]:
        """Range and thresholds in the buffers; None for the exact range, unless the configuration spells it out."""
        norm_range, thresholds = tuple(self.head.norm_range.tolist()), tuple(self.policy.thresholds.tolist())
        if self.config.norm_range is None and np.allclose(
            norm_range, self._exact_norm_range(), rtol=0, atol=RANGE_TOLERANCE
        ):
            return None, thresholds
        return norm_range, thresholds

    def _held_config(self) -> MDLConfig:
        """The configuration with what the buffers hold.

        Raises:
            ValueError: A configuration cannot hold it.
        """
        norm_range, thresholds = self._held()
        return MDLConfig.from_dict({**self.config.to_dict(), "norm_range": norm_range, "thresholds": thresholds})

    def _follows_seed(self) -> bool:
        """Whether the basis is that of the configuration's seed, not a replaced one."""
        return self.basis == SubspaceProjection(self.config).fingerprint()

    def _exact_norm_range(self) -> tuple[float, float]:
        """The exact range with the basis of this layer."""
        return exact_norm_range(self.config) if self._follows_seed() else _grid_norm_range(self)

    def extra_repr(self) -> str:
        """Preset, basis and calibration, for ``print(layer)``."""
        return f"preset={self.preset}, basis={self.basis}, calibration={self.calibration_label}"

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write ``config.json`` and ``model.safetensors``; never a pickle.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     MemoryDecisionLayer().save_pretrained(folder)
            ...     MemoryDecisionLayer.from_pretrained(folder).preset
            'paper'
        """
        from safetensors.torch import save_file

        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: t.detach().cpu().contiguous().clone() for name, t in self.state_dict().items()}
        calibration = None if self.hand_set else self.calibration  # one whose values were changed holds no longer
        described = {
            "format": FORMAT,
            "config": self._held_config().to_dict(),
            "calibration": calibration.to_dict() if calibration else None,
        }
        described["sha256"] = _checksum(described, tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", "utf-8")

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str]) -> Self:
        """Read a layer from a folder, or from a repository of the Hugging Face hub.

        Raises:
            CheckpointError: A file is missing, malformed, of another version, or was altered since it was saved.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = _local_folder(name_or_path)
        try:
            described = json.loads((folder / "config.json").read_text("utf-8"))
            tensors = load_file(folder / "model.safetensors")
            version, checksum = described["format"], described.pop("sha256")
            calibration = described["calibration"]
            config = described["config"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            raise CheckpointError(f"{folder} is not a saved layer: {error!r}") from error
        if version != FORMAT:
            raise CheckpointError(f"{folder} has checkpoint format {version}, this version reads {FORMAT}")
        if checksum != _checksum(described, tensors):
            raise CheckpointError(f"{folder} was altered after it was saved: the checksum in config.json differs")
        try:
            layer = cls(
                MDLConfig.from_dict(config),
                calibration=Calibration.from_dict(calibration) if calibration else None,
            )
            _load_state(layer, tensors)
        except (ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{folder} does not hold a valid layer: {error}") from error
        return layer


def signal_status(relevance: Tensor, reliability: Tensor, risk: Tensor) -> Tensor:
    """``Status`` bits of three signals of one shape ``(*)``, int32.

    Example:
        >>> signal_status(torch.tensor([1.0000001, 0.5]), torch.tensor([0.5, 0.5]), torch.tensor([0.2, float("nan")]))
        tensor([0, 1], dtype=torch.int32)
    """
    stacked = torch.stack((relevance, reliability, risk))
    not_finite = ~stacked.isfinite().all(dim=0)
    unit = stacked[1:]
    outside = (relevance.abs() > 1 + RELEVANCE_SLACK) | ((unit < 0) | (unit > 1)).any(dim=0)
    return not_finite.int() * int(Status.NOT_FINITE) + (outside & ~not_finite).int() * int(Status.OUT_OF_RANGE)


def check_broadcast(**tensors: Tensor) -> None:
    """Refuse shapes that do not broadcast together, naming all of them.

    Raises:
        ValueError: They do not.

    Example:
        >>> check_broadcast(relevance=torch.ones(2), risk=torch.ones(3))
        Traceback (most recent call last):
        ValueError: shapes must broadcast to one shape, got relevance (2,), risk (3,)
    """
    shapes = [tuple(t.shape) for t in tensors.values()]
    for sizes in zip(*(s[::-1] + (1,) * (max(map(len, shapes)) - len(s)) for s in shapes), strict=True):
        wide = [n for n in sizes if n != 1]
        if any(n != wide[0] for n in wide):
            named = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
            raise ValueError(f"shapes must broadcast to one shape, got {named}")


@functools.lru_cache(maxsize=64)
def exact_norm_range(config: MDLConfig) -> tuple[float, float]:
    """Smallest and largest ‖v_meta‖ over a grid of the cube of signals, 41 points a side, in float64.

    Raises:
        ValueError: The norm hardly differs over the cube, so that no range can scale it.

    Example:
        >>> [round(n, 4) for n in exact_norm_range(MDLConfig())]
        [1.2523, 3.2806]
    """
    with torch.device("cpu"):  # whatever device the layer is built on: a number is taken from it
        return _grid_norm_range(MemoryDecisionLayer(replace(config, norm_range=(0.0, 1.0))))  # any range will do


def _grid_norm_range(layer: MemoryDecisionLayer) -> tuple[float, float]:
    axis = torch.linspace(0.0, 1.0, GRID_POINTS, dtype=torch.float64, device=layer.projection.basis.device)
    norms = layer.represent(*torch.cartesian_prod(axis, axis, axis).unbind(-1)).meta.norm(dim=-1)
    try:
        return check_norm_range(norms.min().item(), norms.max().item())
    except ValueError as error:
        raise ValueError(f"‖v_meta‖ hardly differs over the cube, bias or gains leave no range: {error}") from error


def _local_folder(name_or_path: str | os.PathLike[str]) -> Path:
    folder = Path(name_or_path)
    if folder.is_dir():
        return folder
    name = os.fspath(name_or_path)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise CheckpointError(f"no such folder: {name}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["config.json", "model.safetensors"]))
    except Exception as error:  # whatever the hub client raises, the user's next step is the same
        raise CheckpointError(f"no such folder, and not to be had from the hub: {name} ({error})") from error


def _checksum(described: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    sha = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for name in sorted(tensors):
        sha.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode())
        sha.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _load_state(layer: MemoryDecisionLayer, tensors: dict[str, Tensor]) -> None:
    """Load tensors that a preset or a calibration can produce.

    Raises:
        ValueError: Any others, whoever wrote the checksum.
        RuntimeError: A tensor is missing, unknown or of another shape.
    """
    fresh = {name: buffer.clone() for name, buffer in layer.state_dict().items()}
    layer.load_state_dict(tensors, strict=True)
    for name, buffer in layer.state_dict().items():
        if tensors[name].dtype != buffer.dtype:
            raise ValueError(f"{name} must be {buffer.dtype}, got {tensors[name].dtype}")
        if name not in FITTED and not torch.allclose(buffer, fresh[name], rtol=1e-12, atol=1e-12):
            raise ValueError(f"{name} does not follow from the configuration")
    q = layer.projection.basis
    error = (q.mT @ q - torch.eye(q.shape[0], dtype=q.dtype)).abs().max().item()
    if not error <= 1e-6:
        raise ValueError(f"the basis is not orthogonal, QᵀQ differs from I by {error:.2g}")
    layer.config = layer._held_config()  # raises what a configuration would
    if layer.calibration and layer.hand_set:
        raise ValueError(f"range and thresholds are not those of its calibration {layer.calibration.name!r}")
