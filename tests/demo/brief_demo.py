"""`rose`, with less before the first round of the demo: its numbers are not looked at."""

from rose.cli.main import main
from rose.demo import experiment

experiment._CALIBRATION_S, experiment._WARM_UP_S = 1.0, 0.5

if __name__ == "__main__":
    raise SystemExit(main())
