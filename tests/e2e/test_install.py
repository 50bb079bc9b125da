"""docker/install: what it installs, as whom, and what it leaves. Packages, apt-get and sudo are stand-ins here."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess

import pytest
from harness import ROOT, clean_environment, wait_until

# One package of each, that brings a daemon of its name in the folder of units.
APT = """#!/bin/bash
echo "apt-get $* $DEBIAN_FRONTEND $http_proxy $https_proxy" >>{folder}/calls
[ "$1" = install ] || exit 0
[ ! -e {folder}/policy-rc.d ] || { cat {folder}/policy-rc.d; for unit in haproxy.service etcd ssh; do
    sh {folder}/policy-rc.d $unit start; echo "$unit $?"; done } >{folder}/policy
touch {folder}/units/haproxy.service
while [ -e {folder}/slow ]; do sleep 0.05; done
exit $FAILS
"""
SUDO = """#!/bin/sh
exec env -i PATH="$PATH" FAILS="${FAILS:-0}" "$@"
"""
SYSTEMCTL = """#!/bin/sh
echo "systemctl $*" >>{folder}/calls
"""


class Tree:
    def __init__(self, folder: pathlib.Path, *, debian: bool = True) -> None:
        self.folder = folder
        text = (ROOT / "docker" / "install").read_text()
        for real, here in {
            "/usr/sbin/policy-rc.d": "policy-rc.d", "/usr/lib/systemd/system": "units", "/lib/systemd/system": "units",
            "/etc/systemd/system": "own",
        }.items():
            assert real in text
            text = text.replace(real, str(folder / here))
        texts = {"docker/install": text, "docker/packages-build": "curl\nlibcjson-dev\n",
                 "docker/packages-cluster": "# Why.\netcd-server\nhaproxy\n", "docker/packages-test": "", "docker/packages-page": "",
                 "docker/fetch-llhttp": "#!/bin/sh\necho fetched\n", "docker/fetch-xgrammar": "#!/bin/sh\n",
                 "bin/sudo": SUDO, "bin/systemctl": SYSTEMCTL, "bin/curl": "#!/bin/sh\n",
                 "bin/id": "#!/bin/sh\necho 1000\n", "bin/pkg-config": '#!/bin/sh\n[ "$2" = libcjson ]\n'}
        if debian:
            texts |= {"bin/apt-get": APT, "bin/dpkg-query": '#!/bin/sh\n[ "$3" = curl ] && echo install ok installed\n'}
        for path, content in texts.items():
            file = folder / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(content.replace("{folder}", str(folder)))
            file.chmod(0o755)
        for name in ("units", "own"):
            (folder / name).mkdir()
        for name in ("bash", "sh", "env", "cat", "chmod", "dirname", "grep", "mktemp", "python3", "rm", "sleep", "tail", "touch"):
            if not (folder / "bin" / name).exists():
                (folder / "bin" / name).symlink_to(shutil.which(name))

    def start(self, stage: str, **env: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in clean_environment().items() if not name.lower().endswith("_proxy")}
        # Under nohup a hangup is ignored, which children inherit.
        return subprocess.Popen([self.folder / "docker" / "install", stage], env=kept | {"PATH": f"{self.folder / 'bin'}"} | env,
                                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))

    def run(self, stage: str, **env: str) -> tuple[int, str, str]:
        process = self.start(stage, **env)
        out, said = process.communicate()
        return process.returncode, out, said

    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def policy(self) -> pathlib.Path:
        return self.folder / "policy-rc.d"


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> Tree:
    return Tree(tmp_path)


def test_install__no_new_daemon_is_started_or_enabled(tree):
    (tree.folder / "own" / "etcd.service").touch()
    code, out, _ = tree.run("cluster")
    assert code == 0 and "libcjson-dev etcd-server haproxy\n" in out and "neither started nor enabled" in out
    assert out.endswith("fetched\n")
    # While packages are installed; what was there before may do as it likes.
    assert (tree.folder / "policy").read_text().endswith("exit 0\nhaproxy.service 101\netcd 0\nssh 0\n")
    assert not tree.policy.exists()
    disabled = [call for call in tree.calls() if " disable " in call]
    assert disabled == ["systemctl disable haproxy.service"]


def test_install__without_daemons_there_is_no_policy(tree):
    assert tree.run("build")[0] == 0
    assert not (tree.folder / "policy").exists() and not any("systemctl" in call for call in tree.calls())


def test_install__a_policy_of_the_machine_s_own_stays(tree):
    tree.policy.write_text("exit 101\n")
    assert tree.run("cluster")[0] == 0
    assert tree.policy.read_text() == "exit 101\n"
    assert "systemctl disable haproxy.service" in tree.calls()


def test_install__one_that_a_killed_one_left_does_not(tree):
    tree.policy.write_text("#!/bin/sh\n# docker/install of kvahead, as it was\n")
    assert tree.run("cluster")[0] == 0
    assert not tree.policy.exists()


def test_install__a_failure_leaves_nothing(tree):
    code, _, said = tree.run("cluster", FAILS="1")
    assert code == 1 and "the installation failed" in said and not tree.policy.exists()
    assert "systemctl disable haproxy.service" in tree.calls()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_install__nor_does_a_signal(tree, number):
    (tree.folder / "slow").touch()
    process = tree.start("cluster")
    wait_until("it installs", (tree.folder / "units" / "haproxy.service").exists)
    assert tree.policy.exists()
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    for pid in children:
        os.kill(int(pid), number)
    (tree.folder / "slow").unlink()
    assert process.wait() != 0 and not tree.policy.exists()
    assert "systemctl disable haproxy.service" in tree.calls()


def test_install__what_apt_is_told_crosses_sudo(tree):
    proxies = {"http_proxy": "http://u:p'w@a:1", "https_proxy": "http://b:2"}
    assert tree.run("build", DEBIAN_FRONTEND="readline", **proxies)[0] == 0
    assert tree.calls() == [f"apt-get {what} readline http://u:p'w@a:1 http://b:2"
                            for what in ("update", "install -y --no-install-recommends libcjson-dev")]


def test_install__packages_that_are_there(tree):
    for name in ("build", "cluster"):
        assert tree.run(name, KVAHEAD_INSTALL="no") == (0, "fetched\n", "")
    assert not tree.calls()


def test_install__off_debian_it_looks_for_what_they_are_for(tmp_path):
    tree = Tree(tmp_path, debian=False)
    assert tree.run("build") == (0, "fetched\n", "")
    (tree.folder / "docker" / "packages-build").write_text("curl\nlibcjson-dev\nlibcmocka-dev\nno-such-program\n")
    code, out, said = tree.run("build")
    assert code == 1 and not out and ": libcmocka-dev no-such-program\n" in said and "KVAHEAD_INSTALL=no" in said
