"""Write the certificates that ship with the package, one for each preset that has one. A test checks their covers.

python scripts/make_certificates.py
"""

from pathlib import Path

from mdl_torch.certificate import SHIPPED_CERTIFICATES
from mdl_torch.certify import certify
from mdl_torch.config import CHANNELS, preset_config
from mdl_torch.layer import MemoryDecisionLayer

for preset, name in SHIPPED_CERTIFICATES.items():
    certificate = certify(MemoryDecisionLayer(preset_config(preset)), progress=True)
    target = Path(__file__).parents[1] / "mdl_torch" / "data" / name
    certificate.save(target)
    smallest = [round(certificate.slopes[channel].everywhere.smallest[0], 4) for channel in CHANNELS]
    print(f"{preset}: proved slopes along M, R and -A of at least {smallest}; wrote {target}")
