"""Checks docker/kvahead.service, alone and with the drop-in for GPUs, by systemd-analyze: no complaint, and a sandbox as
tight as the unit says.

    python3 service.py SYSTEMD_ANALYZE BINARY SOURCE_ROOT
"""

import pathlib
import re
import subprocess
import sys
import tempfile


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def problems(analyze, binary, unit, drop_in, exposure_max):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "kvahead.service"
        # verify wants a binary that exists.
        path.write_text(unit.replace("/usr/local/bin/kvahead serve", f"{binary} serve"))
        if drop_in:
            (path.parent / "kvahead.service.d").mkdir()
            (path.parent / "kvahead.service.d/cuda.conf").write_text(drop_in)
        done = run(analyze, "verify", path)
        said = (done.stdout + done.stderr).strip()
        if done.returncode or said:
            yield f"verify: {said or done.returncode}"
        done = run(analyze, "security", "--offline=true", path)
        found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
        if not found:
            yield f"security says no level: {done.stdout[-300:]}{done.stderr[-300:]}"
        elif float(found.group(1)) > exposure_max:
            yield f"exposure {found.group(1)}, expected at most {exposure_max}"
        else:
            print(f"exposure {found.group(1)} {'with' if drop_in else 'without'} the drop-in")


def main():
    analyze, binary, root = sys.argv[1:]
    unit = (pathlib.Path(root) / "docker/kvahead.service").read_text()
    drop_in = (pathlib.Path(root) / "docker/kvahead-cuda.conf").read_text()
    found = [*problems(analyze, pathlib.Path(binary).resolve(), unit, None, 1.5),
             *problems(analyze, pathlib.Path(binary).resolve(), unit, drop_in, 2.0)]
    print("\n".join(found) if found else "no problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
