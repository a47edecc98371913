"""Builds an image: `containers/build.py cpu` or `h100`. Standard library only.

    python3 containers/build.py cpu                        containers/mpadam-cpu.sif
    python3 containers/build.py h100 --base IMAGE          another CUDA base image, by tag or by digest
    python3 containers/build.py cpu --mirror URL           another Debian mirror than apt's

What a machine is told about where packages are must reach the image's own pip and debootstrap: the mirror is apt's,
pip's settings are pip's, and files and folders that they name (certificates, wheels, local indexes) are bound into the
build. An image is made of the files that git tracks or would track, beside its target, and renamed when it is done.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Settings of pip that say where packages are, and how to trust those places.
PIP_SETTINGS = ("index-url", "extra-index-url", "find-links", "trusted-host", "cert", "proxy", "timeout", "constraint")
#: Where in the image folders of this machine appear during the build, each below its own path; %setup makes them.
MOUNT = "/media/host"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
#: The fastest of the compressions that every kernel reads: the default level takes minutes more for a tenth less.
SQUASH = ("--mksquashfs-args", "-comp gzip -Xcompression-level 1")


def main() -> int:
    args = arguments()
    if shutil.which("apptainer") is None:
        sys.exit("build.py: there is no apptainer on this machine's PATH; install it or load its module")
    target = args.out or ROOT / "containers" / f"mpadam-{args.kind}.sif"
    target.parent.mkdir(parents=True, exist_ok=True)
    environment, folders = pip_environment(pip_configuration())
    with tempfile.TemporaryDirectory(prefix="mpadam-image-") as folder:
        source, image = Path(folder, "source"), target.with_suffix(".building.sif")
        copy_source(source)
        command = ["apptainer", "build", "--force", *SQUASH, *flags(args, folders)]
        command += [str(image), f"containers/mpadam-{args.kind}.def"]
        print("build.py:", " ".join(command), flush=True)
        done = subprocess.run(command, cwd=source, env={**os.environ, **environment}, check=False)
        if done.returncode == 0:
            image.replace(target)
            print(f"build.py: {target}")
        image.unlink(missing_ok=True)
    return done.returncode


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("cpu", "h100"))
    parser.add_argument("--out", type=Path, help="default: containers/mpadam-KIND.sif")
    parser.add_argument("--mirror", help="Debian mirror of the CPU image; default: the one that apt uses here")
    parser.add_argument("--base", help="CUDA base image of the H100 image; default: the definition file's")
    parser.add_argument("--base-digest", help="its digest, sha256:...; default: what skopeo says the tag means now")
    return parser.parse_args()


def flags(args: argparse.Namespace, folders: list[Path]) -> list[str]:
    """Build arguments and binds."""
    arguments = {"commit": commit(), "mounts": " ".join(f"{MOUNT}{folder}" for folder in folders)}
    if args.kind == "cpu":
        arguments["mirror"] = args.mirror or apt_mirror()
    else:
        base = args.base or default_base()
        arguments["base_name"], arguments["base_digest"] = base, args.base_digest or digest(base)
        arguments["base"] = pinned(base, arguments["base_digest"])
    pairs = [part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")]
    return pairs + [part for folder in folders for part in ("--bind", f"{folder}:{MOUNT}{folder}:ro")]


def default_base() -> str:
    """The base image that the definition file pins."""
    lines = (ROOT / "containers" / "mpadam-h100.def").read_text(encoding="utf-8").splitlines()
    return next(line.strip().removeprefix("base=") for line in lines if line.strip().startswith("base="))


def digest(base: str) -> str:
    """Digest of a base image: the one it is named by, or what skopeo says the tag means now."""
    if "@" in base:
        return base.partition("@")[2]
    if shutil.which("skopeo") is None:
        sys.exit(
            f"build.py: which image {base} is takes skopeo to say, and there is none here; install it, or look the "
            "digest up and give it: --base-digest sha256:..."
        )
    query = ["skopeo", "inspect", "--format", "{{.Digest}}", f"docker://{base}"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def pinned(base: str, digest: str) -> str:
    """The base image by its digest, so that what is built is what the label says: a tag may move, and both together
    are no reference that Apptainer takes."""
    name = base.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}@{digest}"


def commit() -> str:
    """Commit of the source tree, `-dirty` if it has changes; `unknown` if it is in no git repository of its own."""
    return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").strip() or "unknown"


def git(*arguments: str) -> str:
    """What git says of the source tree; nothing where it is not the root of a repository, whatever lies above it."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return ""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(ROOT), "-c", "safe.directory=*", *arguments]
    return subprocess.run(command, env=inherited, capture_output=True, text=True, check=False).stdout


def copy_source(folder: Path) -> None:
    """The files of the source tree that an image is made of: tracked ones as they are now, and new ones.

    Without git all files but Python's own and built images.
    """
    parts = ("src", "envs", "containers", "profiles/slurm", "pyproject.toml", "README.md", "LICENSE")
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *parts).split("\0")
    if names == [""]:
        found = [path for part in parts for path in (ROOT / part, *(ROOT / part).rglob("*"))]
        names = [str(path.relative_to(ROOT)) for path in found if path.suffix not in (".pyc", ".sif")]
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def apt_mirror() -> str:
    """The Debian mirror that this machine's apt uses."""
    query = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT) $(ORIGIN)", "Created-By: Packages"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        lines = []
    found = [line.split()[0] for line in lines if " main Debian" in line and "security" not in line.split()[0]]
    if not found:
        sys.exit("build.py: apt names no Debian mirror here; give one with --mirror URL")
    return found[0]


def pip_configuration() -> dict[str, str]:
    """Settings of pip on this machine, from its files and its environment variables; the environment counts more."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings: dict[str, str] = {}
    for prefix in ("global.", "install.", ":env:."):
        for line in listing.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(prefix) and key.removeprefix(prefix) in PIP_SETTINGS:
                settings[key.removeprefix(prefix)] = value.strip("'\"").replace("\\n", " ")
    if "cert" not in settings and CERTIFICATES.is_file():
        settings["cert"] = str(CERTIFICATES)
    return settings


def pip_environment(settings: dict[str, str]) -> tuple[dict[str, str], list[Path]]:
    """The settings as variables of the build, and the folders of this machine that they name."""
    folders: set[Path] = set()
    environment = {
        f"APPTAINERENV_PIP_{key.upper().replace('-', '_')}": " ".join(inside(word, folders) for word in value.split())
        for key, value in settings.items()
    }
    return environment, sorted(folders)


def inside(word: str, folders: set[Path]) -> str:
    """A word of a setting as it reads in the image; the folder to bind for a local path is added to `folders`.

    Pages of a local index link to files beside it, so the folder above it is bound.
    """
    scheme = "file://" if word.startswith("file://") else ""
    path = Path(word.removeprefix(scheme))
    if not path.is_absolute() or not path.exists():
        return word
    folders.add(path if path.is_dir() and not scheme else path.parent)
    return f"{scheme}{MOUNT}{path}"


if __name__ == "__main__":
    sys.exit(main())
