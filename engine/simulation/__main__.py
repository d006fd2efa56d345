"""`python -m engine.simulation`: what `fairlane simulate` runs. No model and no device is loaded for it."""

from engine.simulation.command import simulate

if __name__ == "__main__":
    simulate(prog_name="fairlane simulate")
