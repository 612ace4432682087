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

from mdl_torch.calibration import UNFITTED, Calibration, digest, fit_norm_range
from mdl_torch.certificate import Certificate
from mdl_torch.config import MDLConfig, NormRange, check_norm_range, preset_config
from mdl_torch.encoding import ValueEncoder
from mdl_torch.errors import CertificateMismatchError, CheckpointError
from mdl_torch.fusion import MetaFusion
from mdl_torch.head import ConfidenceHead, Trust
from mdl_torch.outputs import INVALID, Action, Decision, Status
from mdl_torch.policy import ActionPolicy
from mdl_torch.stage import check_tensors, compute_dtype, no_autocast
from mdl_torch.subspace import SubspaceProjection

RELEVANCE_SLACK = 0.01
"""How far beyond [-1, 1] a relevance may lie and still be a rounded cosine (bfloat16 rounds 1 up to 1.0078)."""

GRID_POINTS = 41
"""Points along each signal of the grid of the cube that the exact range of ‖v_meta‖ is taken from."""

RANGE_TOLERANCE = 1e-10
"""How far two machines may differ in the exact range, as a share of its width."""

WEIGHT_TOLERANCE = 1e-13
"""How far they may in the weights that they compute from one basis."""

FORMAT = 1
"""Version of the checkpoint's layout."""

FITTED = ("projection.basis", "head.norm_range", "policy.thresholds")
"""The buffers that a preset or a calibration may set; the others follow from the configuration."""


class Representation(NamedTuple):
    """What becomes of the signals: v_wm ``(*, D)``, what each channel adds ``(*, 3, D)``, v_meta, g_A ``(*)``.

    With n > 1 bases v_wm is ``(*, 1, D)``, the channels ``(*, n, 3, D)`` and v_meta ``(*, n, D)``.
    """

    relevance_vector: Tensor
    channels: Tensor
    meta: Tensor
    gain: Tensor


class MemoryDecisionLayer(nn.Module):
    """Decides from (M, R, A) whether retrieved memories deserve trust (Algorithm 1).

    v(s) → W_k v_k → v_meta = tanh(Σ) → C, α → C_final = C·(0.3 + 0.7α) → Active, Supp, Silent or Opt-Out.

    It has no parameters; its buffers are float64 and stay so. Bad values cannot raise in a graph: a row with a NaN, an
    infinity or a value out of range is Opt-Out with its status bit.

    With several bases (``MDLConfig.bases``) C_final is the mean over them, each with its own exact range, still in one
    batched forward.

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
        self.certificate: Certificate | None = None

    @classmethod
    def from_preset(cls, name: str) -> Self:
        """The layer of a preset, with the exact range, and with its certificate if one ships.

        Raises:
            ValueError: No such preset; the nearest is named.

        Example:
            >>> MemoryDecisionLayer.from_preset("certified").certificate_status
            'valid'
            >>> MemoryDecisionLayer.from_preset("paper").certificate_status
            'none'
        """
        layer = cls(preset_config(name))
        layer.certificate = Certificate.of_preset(name)
        return layer

    @classmethod
    def from_name(cls, name_or_path: str | os.PathLike[str]) -> Self:
        """The layer of a preset's name, else that of a folder or a repository of the hub; see ``from_pretrained``.

        Raises:
            ValueError: It is a plain name, but neither of a preset nor of a folder.
            CheckpointError: The folder or repository holds no layer.

        Example:
            >>> MemoryDecisionLayer.from_name("certified").preset
            'certified'
        """
        if isinstance(name_or_path, str) and "/" not in name_or_path and not Path(name_or_path).is_dir():
            return cls.from_preset(name_or_path)
        return cls.from_pretrained(name_or_path)

    def calibrated(self, calibration: Calibration) -> Self:
        """This layer with a fitted range and thresholds, as a copy; basis and device stay.

        A calibration without a range keeps the exact one.

        Raises:
            CalibrationMismatchError: It was fitted for another configuration or basis.

        Example:
            >>> MemoryDecisionLayer().calibrated(Calibration.reference()).calibration_label.split(":")[0]
            'reference'
        """
        calibration.check_layer(self.config, self.basis)
        config = replace(self.config, norm_range=calibration.norm_range, thresholds=calibration.thresholds)
        return self._refitted(config, calibration.norm_range or self._exact_norm_range(), calibration)

    def certified(self, certificate: Certificate) -> Self:
        """This layer with a certificate, as a copy.

        Args:
            certificate: Of this layer, proving that the action never moves the wrong way along M, R or A.

        Raises:
            CertificateMismatchError: It is of another layer, or proves less.

        Example:
            >>> layer = MemoryDecisionLayer.from_preset("certified")
            >>> MemoryDecisionLayer().certified(layer.certificate)
            Traceback (most recent call last):
            mdl_torch.errors.CertificateMismatchError: the certificate is of layer ..., this is layer ...
        """
        self._check_certificate(certificate)
        layer = copy.deepcopy(self)
        layer.certificate = certificate
        return layer

    def _check_certificate(self, certificate: Certificate) -> None:
        """Refuse a certificate that this layer may not wear."""
        if certificate.subject != (own := self.digest()):
            raise CertificateMismatchError(f"the certificate is of layer {certificate.subject}, this is layer {own}")
        for name, mine in (("preset", self.preset), ("basis", self.basis)):
            if (theirs := getattr(certificate, name)) != mine:
                raise CertificateMismatchError(f"the certificate is of {name} {theirs}, this layer has {mine}")
        if not certificate.trusted:
            verdicts = ", ".join(f"{channel} {found.verdict}" for channel, found in certificate.actions.items())
            raise CertificateMismatchError(f"the certificate must hold along every signal to be worn, got {verdicts}")

    def uncalibrated(self) -> Self:
        """This layer with the exact range and the default thresholds, as a copy; basis and device stay.

        Example:
            >>> fitted = MemoryDecisionLayer().calibrated(Calibration.reference())
            >>> fitted.uncalibrated().calibration_label
            'exact-range'
        """
        return self._refitted(self.config.uncalibrated(), self._exact_norm_range(), None)

    def ranged(
        self,
        norm_range: tuple[float, float] | None = None,
        thresholds: tuple[float, float, float] = MDLConfig.thresholds,
    ) -> Self:
        """This layer with a range and thresholds of your own, as a copy; None is the exact range.

        Example:
            >>> MemoryDecisionLayer().ranged((2.0, 3.0)).head.norm_range.tolist()
            [2.0, 3.0]
        """
        config = replace(self.config, norm_range=norm_range, thresholds=thresholds)
        return self._refitted(config, config.norm_range or self._exact_norm_range(), None)

    def _refitted(self, config: MDLConfig, norm_range: NormRange, calibration: Calibration | None) -> Self:
        layer = copy.deepcopy(self)
        layer.config, layer.calibration = config, calibration
        layer.head.norm_range = self.head.norm_range.new_tensor(norm_range).expand_as(self.head.norm_range).clone()
        layer.policy.thresholds = self.policy.thresholds.new_tensor(config.thresholds)
        layer.certificate = layer._renewed(self.certificate)
        return layer

    def _renewed(self, certificate: Certificate | None) -> Certificate | None:
        """A certificate after range or thresholds changed: as far as it follows, else as it was, and so void."""
        if certificate is None or certificate.subject == (subject := self.digest()):
            return certificate
        shipped = Certificate.of_preset(self.preset)
        if shipped and shipped.subject == subject:
            return shipped
        if self.changed() or certificate.function != self.digest(thresholds=False):
            return certificate
        return certificate.with_thresholds(subject, self.held_config(), self.calibration_label) or certificate

    def encode(self, relevance: Tensor, reliability: Tensor, risk: Tensor) -> Tensor:
        """Value vectors v_wm, v_r and v_a of valid signals in [0, 1], all ``(*)`` of one dtype: ``(*, 3, D)``."""
        inverted = 1 - risk if self.config.risk_inversion else risk
        vectors: Tensor = self.encoder(torch.stack((relevance, reliability, inverted), dim=-1))
        return vectors

    def spread(self, vectors: Tensor) -> Tensor:
        """Value vectors ``(*, 3, D)`` as the projection takes them: with several bases ``(*, 1, 3, D)``."""
        return vectors if self.config.bases == 1 else vectors.unsqueeze(-3)

    def averaged(self, trust: Trust) -> Trust:
        """Each field's mean over the bases, ``(*)``; with one basis ``trust`` itself."""
        return trust if self.config.bases == 1 else Trust(*(value.mean(dim=-1) for value in trust))

    def represent(self, relevance: Tensor, reliability: Tensor, risk: Tensor) -> Representation:
        """The fused representation of valid signals in [0, 1], all ``(*)`` of one dtype (Section 3.2)."""
        vectors = self.spread(self.encode(relevance, reliability, risk))
        relevance_vector, _, risk_vector = vectors.unbind(-2)
        channels, gain = self.fusion.modulate(risk_vector, self.projection(vectors))
        gain = gain if self.config.bases == 1 else gain.squeeze(-1)
        return Representation(relevance_vector, channels, self.fusion(channels), gain)

    def trust(self, relevance: Tensor, reliability: Tensor, risk: Tensor) -> Trust:
        """‖v_meta‖, C, α and C_final of every basis, for valid signals in [0, 1], all ``(*)`` of one dtype.

        Returns:
            Each ``(*)``, or ``(*, n)`` with n > 1 bases; a decision is the mean over them.

        Example:
            >>> layer = MemoryDecisionLayer(MDLConfig(bases=3))
            >>> point = torch.tensor([0.7, 0.3, 0.5], dtype=torch.float64)
            >>> layer.trust(*point).gated_confidence.round(decimals=4)
            tensor([0.7283, 0.7003, 0.7741], dtype=torch.float64)
            >>> round(layer(*point).gated_confidence.item(), 4)
            0.7342
        """
        represented = self.represent(relevance, reliability, risk)
        trust: Trust = self.head(represented.relevance_vector, represented.meta)
        return trust

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
            trust = self.averaged(self.head(relevance_vector, meta))
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
        """Name of the preset this layer follows; ``custom`` too if its basis, a buffer or a switch was changed."""
        return self.config.preset if self._follows_config() and not self.changed() else "custom"

    @property
    def certificate_status(self) -> str:
        """``valid``, ``none``, or ``void``: the certificate was of this layer, but something of it was changed since.

        Of buffers and switches, that is, not of code; and the proof is not gone through again: ``certify.check`` does.

        It is void, too, if it proves too little to be worn (see ``certified``), and on the meta device, where buffers
        have no values.

        Example:
            >>> layer = MemoryDecisionLayer.from_preset("certified")
            >>> _ = layer.policy.thresholds.mul_(0.9)
            >>> layer.certificate_status
            'void'
        """
        if self.certificate is None:
            return "none"
        if any(buffer.is_meta for buffer in self.buffers()):
            return "void"
        try:
            self._check_certificate(self.certificate)
        except CertificateMismatchError:
            return "void"
        return "valid"

    def digest(self, *, thresholds: bool = True) -> str:
        """Hex digits that name all that decides: basis, configuration, range and, unless told otherwise, thresholds.

        Taken from the buffers and the modules' switches, so that whatever was changed in place changes it.

        Example:
            >>> layer = MemoryDecisionLayer()
            >>> before = layer.digest()
            >>> layer.fusion.bias[3] = 1e-9
            >>> layer.digest() == before
            False
        """
        norm_range, held = self._held()
        config = {**self.config.to_dict(), **self._switches(), "norm_range": norm_range}
        config["thresholds"] = held if thresholds else None
        sha = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        for name in ("projection.basis", *self._altered()):
            sha.update(name.encode())
            sha.update(_plain_bytes(self.get_buffer(name)))
        return sha.hexdigest()[:16]

    def snapshot(self) -> tuple[Any, ...]:
        """All that decides and what is said of it, as it is now, to be compared with later; cheaper than ``digest``.

        Example:
            >>> layer = MemoryDecisionLayer()
            >>> before = layer.snapshot()
            >>> layer.head.gated = False
            >>> layer.snapshot() == before
            False
        """
        buffers = (_plain_bytes(buffer) for buffer in self.buffers())
        return (self.config, self.calibration, self.certificate, *self._switches().values(), *buffers)

    def changed(self) -> list[str]:
        """Names of the buffers and switches that are not as configured; basis, range and thresholds are not among them.

        Example:
            >>> layer = MemoryDecisionLayer()
            >>> layer.fusion.bias[3] = 1e-9
            >>> layer.changed()
            ['fusion.bias']
        """
        switched = [name for name, held in self._switches().items() if held != getattr(self.config, name)]
        return switched + self._altered()

    def _switches(self) -> dict[str, Any]:
        """What the modules do, by the configuration's names: they were told once, and may have been changed since."""
        return {
            "value_encoding": self.encoder.peaks,
            "risk_modulation": self.fusion.modulated,
            "orthogonal_subspaces": self.projection.orthogonal,
            "subspace_dims": self.projection.dims,
            "alpha_gate": self.head.gated,
        }

    def _altered(self) -> list[str]:
        """The buffers that do not follow from configuration and basis, other than range and thresholds."""
        fresh = _fresh_buffers(self.config.uncalibrated())
        names = [name for name, _ in self.named_buffers() if name not in FITTED and name != "projection.weights"]
        odd = [name for name in names if _plain_bytes(self.get_buffer(name)) != fresh[name]]
        weights, own = self.projection.weights, self.projection.weights_of_basis()
        same = weights.shape == own.shape and torch.allclose(weights, own, rtol=0, atol=WEIGHT_TOLERANCE)
        return odd if same else [*odd, "projection.weights"]

    @property
    def basis(self) -> str:
        """Fingerprint of the basis Q, or of all of several."""
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

    def _held(self) -> tuple[NormRange | None, tuple[float, ...]]:
        """Range and thresholds in the buffers; None for the exact range, unless the configuration spells it out."""
        ranges, thresholds = self.head.norm_range.reshape(-1, 2).tolist(), tuple(self.policy.thresholds.tolist())
        if self.config.norm_range is None:
            fresh = np.reshape(self._exact_norm_range(), (-1, 2))
            off = np.abs(np.array(ranges) - fresh) / (fresh[:, 1:] - fresh[:, :1])
            if (off <= RANGE_TOLERANCE).all():
                return None, thresholds
        return _one_if_equal(ranges), thresholds

    def held_config(self) -> MDLConfig:
        """The configuration with the range and thresholds that the buffers hold.

        Raises:
            ValueError: A configuration cannot hold them.

        Example:
            >>> MemoryDecisionLayer().calibrated(Calibration.reference()).held_config().norm_range
            (2.2309673, 3.138886)
        """
        norm_range, thresholds = self._held()
        if norm_range is not None and not isinstance(norm_range[0], float):
            raise ValueError(f"norm_range must be one for all bases or the exact one of each, got {norm_range}")
        return MDLConfig.from_dict({**self.config.to_dict(), "norm_range": norm_range, "thresholds": thresholds})

    def _follows_config(self) -> bool:
        """Whether the basis is that of the configuration, not a replaced one."""
        return self.basis == _fingerprint(self.config.uncalibrated())

    def _exact_norm_range(self) -> NormRange:
        """The exact range with the basis of this layer."""
        return exact_norm_range(self.config) if self._follows_config() else _grid_norm_range(self)

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
            "config": self.held_config().to_dict(),
            "calibration": calibration.to_dict() if calibration else None,
            "certificate": self.certificate.to_dict() if self.certificate else None,
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
            calibration, certificate = described["calibration"], described["certificate"]
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
            layer.certificate = Certificate.from_dict(certificate) if certificate else None
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
def exact_norm_range(config: MDLConfig) -> NormRange:
    """Smallest and largest ‖v_meta‖ over a grid of the cube of signals, 41 points a side, in float64.

    Returns:
        (n_min, n_max), or one such pair for each of several bases.

    Raises:
        ValueError: The norm hardly differs over the cube, so that no range can scale it.

    Example:
        >>> [round(n, 4) for n in exact_norm_range(MDLConfig())]
        [1.2523, 3.2806]
    """
    with torch.device("cpu"):  # whatever device the layer is built on: a number is taken from it
        return _grid_norm_range(MemoryDecisionLayer(replace(config, norm_range=(0.0, 1.0))))  # any range will do


def _grid_norm_range(layer: MemoryDecisionLayer) -> NormRange:
    axis = torch.linspace(0.0, 1.0, GRID_POINTS, dtype=torch.float64, device=layer.projection.basis.device)
    points = torch.cartesian_prod(axis, axis, axis)
    blocks = points.chunk(layer.config.bases)  # as much at once as one basis takes
    norms = torch.cat([layer.represent(*block.unbind(-1)).meta.norm(dim=-1) for block in blocks])
    lows, highs = (t.reshape(-1).tolist() for t in (norms.amin(dim=0), norms.amax(dim=0)))
    try:
        ranges = [check_norm_range(low, high) for low, high in zip(lows, highs, strict=True)]
    except ValueError as error:
        raise ValueError(f"‖v_meta‖ hardly differs over the cube, bias or gains leave no range: {error}") from error
    return ranges[0] if layer.config.bases == 1 else tuple(ranges)


def refit_norm_range(calibration: Calibration, layer: MemoryDecisionLayer) -> NormRange:
    """The range that a calibration would have got on another layer: same retrievals, same method.

    Args:
        calibration: It holds the signals of its retrievals, or keeps the exact range.
        layer: Any; its own range plays no part.

    Returns:
        (n_min, n_max), or one such pair for each of several bases.

    Raises:
        ValueError: The calibration holds no signals, or their norms have no spread.

    Example:
        >>> [round(n, 4) for n in refit_norm_range(Calibration.reference(), MemoryDecisionLayer())]
        [2.231, 3.1389]
    """
    if calibration.norm_range is None:
        return layer._exact_norm_range()
    if not calibration.signals:
        raise ValueError(f"calibration {calibration.name!r} must hold the signals it was fitted on, got none")
    signals = layer.policy.thresholds.new_tensor(calibration.signals)
    norms = layer.trust(*signals.unbind(-1)).norm.reshape(len(signals), -1)
    ranges = [fit_norm_range(column.numpy(), calibration.range_method) for column in norms.cpu().unbind(-1)]
    return ranges[0] if layer.config.bases == 1 else tuple(ranges)


@functools.lru_cache(maxsize=64)
def _fresh_buffers(config: MDLConfig) -> dict[str, bytes]:
    """The buffers of a layer that was just made, but those that are fitted."""
    with torch.device("cpu"):
        layer = MemoryDecisionLayer(replace(config, norm_range=(0.0, 1.0)))
    return {name: _plain_bytes(buffer) for name, buffer in layer.named_buffers() if name not in FITTED}


def _plain_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().numpy().tobytes()


@functools.lru_cache(maxsize=64)
def _fingerprint(config: MDLConfig) -> str:
    with torch.device("cpu"):
        return SubspaceProjection(config).fingerprint()


def _one_if_equal(ranges: list[list[float]]) -> NormRange:
    """One range for all bases where they are the same."""
    pairs = [(low, high) for low, high in ranges]
    return pairs[0] if pairs.count(pairs[0]) == len(pairs) else tuple(pairs)


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
    error = (q.mT @ q - torch.eye(q.shape[-1], dtype=q.dtype)).abs().max().item()
    if not error <= 1e-6:
        raise ValueError(f"the basis is not orthogonal, QᵀQ differs from I by {error:.2g}")
    layer.config = layer.held_config()  # raises what a configuration would
    if layer.calibration and layer.hand_set:
        raise ValueError(f"range and thresholds are not those of its calibration {layer.calibration.name!r}")
