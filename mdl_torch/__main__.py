"""``python -m mdl_torch`` is ``mdl``."""

import sys

from mdl_torch.cli import main

if __name__ == "__main__":
    sys.exit(main())
