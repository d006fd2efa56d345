"""`fairlane serve` with a fake engine: `python -m tests.inference.serve_fake DATA_DIR EXPORT_DIR [field=value ...]`."""

import os
import sys

import msgspec

from appliance.asgi import serve
from appliance.settings import load_settings

ENGINE = (sys.executable, "-m", "tests.inference.fake_engine")


def main() -> int:
    data_dir, export_dir, *fields = sys.argv[1:]
    flags = {"port": 0, "data_dir": data_dir, **dict(field.split("=", 1) for field in fields)}
    settings = load_settings(flags, os.environ).settings
    engine = msgspec.structs.replace(settings.engine, export_dir=export_dir)
    return serve(msgspec.structs.replace(settings, engine=engine), ENGINE)


if __name__ == "__main__":
    sys.exit(main())
