"""Find code that nothing reaches: `names` looks for names without a use, `runs` for functions that no run of `endpick serve` enters."""

from __future__ import annotations

import argparse
import sys

CHECKS = ("names", "runs")


def main() -> int:
    """Run the checks; the exit code is 1 when one of them found something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checks", nargs="*", choices=[*CHECKS, []], metavar="CHECK", help="names, runs; both when none is given")
    complaints: list[str] = []
    for check in dict.fromkeys(parser.parse_args().checks or CHECKS):
        if check == "names":
            from reachable.names import unused_names

            complaints += unused_names()
        else:
            from reachable.runs import unreached_functions

            complaints += unreached_functions()
    print("\n".join(complaints) or "reachable")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
