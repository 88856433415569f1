"""`python -m kairode` is the command `kairode`."""

import os
import sys

from kairode._memory import check_process
from kairode._signals import INTERRUPTED, end, ignore_signals, prepare_signals, received
from kairode.errors import KairodeError


def main() -> None:
    """Run the command; whatever an interrupt leads to while modules are imported, it ends in one sentence."""
    try:
        prepare_signals()
        check_process()
        from kairode.cli import main as run_command

        run_command()
        ignore_signals()
    except SystemExit as stop:
        if received():  # Python would end with the signal's own code where the interrupt passed through `exec`
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(stop.code if isinstance(stop.code, int) else int(stop.code is not None))
        raise
    except KairodeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BaseException as error:  # in an import, an interrupt may surface as another error
        if not (received() or isinstance(error, KeyboardInterrupt)):
            raise
        sys.stdout.flush()
        end(INTERRUPTED)


if __name__ == "__main__":
    main()
