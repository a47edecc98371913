"""The H100 image's environment: what its files pin, what pip makes of them, and how they are installed.

Issue 18, item 4. No CUDA wheel is downloaded: pip reads the metadata of a wheel by parts of it (fast-deps).
"""

import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
#: The first version of pip known to need no wheel for a dry run whose metadata it has.
PIP = "pip==26.3"
#: What the packages of envs/gpu-compiled.txt ask for, from their sources: build_tools/pytorch.py of Transformer Engine
#: v2.18 and setup.py of FlashAttention. pip would have to compile them to know.
COMPILED = (
    "torch>=2.1", "einops", "onnxscript", "onnx", "packaging", "pydantic", "nvdlfw-inspect",
    "nvidia-cudnn-frontend>=1.25.0", "transformer-engine-cu13==2.18.0", "ninja", "psutil", "wheel", "setuptools",
)  # fmt: skip


def requirements(name: str) -> list[Requirement]:
    """Lines of a file in envs/, those of files that it includes left out."""
    lines = (ROOT / "envs" / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and line[0] not in "#-"]


def pins(*names: str) -> dict[str, str]:
    """Package -> the version that its `==` says."""
    found: dict[str, str] = {}
    for requirement in (r for name in names for r in requirements(name)):
        exact = [s.version for s in requirement.specifier if s.operator == "=="]
        found |= {canonicalize_name(requirement.name): version for version in exact}
    return found


def module(name: str) -> ModuleType:
    """A script of containers/ as a module; it is part of no package."""
    spec = importlib.util.spec_from_file_location(f"containers_{name}", ROOT / f"containers/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


# --- pins ------------------------------------------------------------------------------------------------------------


def test_what_is_compiled_asks_for_nothing_but_pins() -> None:
    """Unpinned: ninja came with the step that needs it, and 22 packages with Transformer Engine's extension."""
    first = pins("cpu.txt", "gpu.txt")
    for requirement in map(Requirement, COMPILED):
        assert requirement.specifier.contains(first[canonicalize_name(requirement.name)]), requirement
    assert set(pins("gpu-compiled.txt")) == {"transformer-engine-torch", "flash-attn"}
    assert not set(pins("gpu-compiled.txt")) & set(first)


def test_pins_of_the_two_environments_do_not_contradict_each_other() -> None:
    cpu, gpu = pins("cpu.txt"), pins("gpu.txt")
    assert {name: (cpu[name], gpu[name]) for name in set(cpu) & set(gpu) if cpu[name] != gpu[name]} == {}
    assert "-r cpu.txt" in (ROOT / "envs/gpu.txt").read_text(encoding="utf-8").splitlines()


def pip(*arguments: str, python: tuple[str, ...] = (sys.executable,)) -> subprocess.CompletedProcess[str]:
    command = [*python, "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write_wheel(folder: Path, version: str) -> None:
    """An empty torch of that version."""
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_an_index_of_cpu_wheels_does_not_change_torch(tmp_path: Path) -> None:
    """2.13.0+cpu is newer than 2.13.0 to pip, and both are ==2.13.0."""
    version = pins("cpu.txt")["torch"]
    for local in ("", "+cpu"):
        write_wheel(tmp_path, version + local)
    asked = [str(r) for r in (*requirements("cpu.txt"), *requirements("gpu.txt")) if r.name == "torch"]
    report = tmp_path / "report.json"
    local_only = ("--isolated", "--no-index", "--find-links", str(tmp_path))
    done = pip("install", "--dry-run", "--ignore-installed", "--report", str(report), *local_only, *asked)
    assert done.returncode == 0, done.stderr
    assert [each["metadata"]["version"] for each in json.loads(report.read_text())["install"]] == [version]


@pytest.fixture(scope="module")
def new_pip(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Python with a pip that downloads no wheel to resolve; skips where no registry answers, or not in parts."""
    folder = tmp_path_factory.mktemp("pip")
    done = pip("install", "--quiet", "--retries", "1", "--target", str(folder), PIP)
    if done.returncode:
        pytest.skip(f"no package registry answers: {done.stderr.strip().splitlines()[-1]}")
    python = ("env", f"PYTHONPATH={folder}", sys.executable)
    tried = resolve(folder / "ninja.json", f"ninja=={pins('gpu.txt')['ninja']}", "--no-deps", python=python)
    if tried.returncode or "Downloading" in tried.stdout:
        pytest.skip("the package registry serves whole wheels only: resolving would download gigabytes")
    return python


def resolve(report: Path, *arguments: str, python: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """What pip would install on x86-64 Linux with Python 3.12, without wheels being downloaded."""
    tags = [f"manylinux_2_{n}_x86_64" for n in range(39, 4, -1)] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
    platform = [part for tag in tags for part in ("--platform", tag)]
    where = ["--python-version", "3.12", "--implementation", "cp", "--only-binary", ":all:", *platform]
    how = ["--dry-run", "--ignore-installed", "--target", str(report.parent / "nowhere"), "--use-feature", "fast-deps"]
    return pip("install", "--verbose", "--report", str(report), *how, *where, *arguments, python=python)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_pip_resolves_the_whole_gpu_set_to_its_pins(tmp_path: Path, new_pip: tuple[str, ...]) -> None:
    """Two minutes, most of them waiting. A package of the CPU environment has to agree where the GPU's ask for it."""
    constraints = tmp_path / "cpu.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in pins("cpu.txt").items()))
    gpu = [*map(str, requirements("gpu.txt")), *(text for text in COMPILED if not text.startswith("torch"))]
    report = tmp_path / "report.json"
    done = resolve(report, *gpu, "--constraint", str(constraints), python=new_pip)
    assert done.returncode == 0, "\n".join(done.stderr.splitlines()[-20:])
    taken = {
        canonicalize_name(each["metadata"]["name"]): re.sub(r"\+.*", "", each["metadata"]["version"])
        for each in json.loads(report.read_text())["install"]
    }
    pinned = pins("cpu.txt", "gpu.txt")
    assert {name: version for name, version in taken.items() if pinned.get(name) != version} == {}
    assert set(pins("gpu.txt")) <= set(taken), "pins of what is not asked for"


# --- installing ------------------------------------------------------------------------------------------------------

#: Stands for Python: notes what it is called with and which ninja is found, and makes what the steps would make.
STUB = r"""#!/bin/bash
echo "$(command -v ninja || echo none) $*" >>"$LOG"
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" "$3/lib" && cp "$0" "$3/bin/python" ;;
  *"-r "*/envs/gpu.txt) touch "${0%/*}/ninja" && chmod +x "${0%/*}/ninja" ;;
  *sysconfig*) echo "${0%/bin/*}/lib" ;;
  *check_cuda.py*) exit "$CUDA_CHECK" ;;
esac
"""


def install(tmp_path: Path, *arguments: str, check: int = 0) -> tuple[int, list[str]]:
    """containers/install.sh on a stub; its exit code, and a line for each call of Python."""
    stub, log = tmp_path / "python", tmp_path / "log"
    stub.write_text(STUB)
    stub.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "LOG": str(log), "CUDA_CHECK": str(check)}
    command = ["bash", "containers/install.sh", str(stub), str(tmp_path / "env"), str(ROOT), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    return done.returncode, log.read_text().splitlines()


def test_ninja_is_there_and_found_before_anything_is_compiled(tmp_path: Path) -> None:
    """Without it FlashAttention compiles one file at a time, for hours."""
    code, calls = install(tmp_path, "envs/gpu.txt", "13.0", "envs/gpu-compiled.txt")
    assert code == 0, calls
    compiling = next(call for call in calls if call.endswith("envs/gpu-compiled.txt"))
    assert compiling.startswith(f"{tmp_path}/env/bin/ninja ")
    assert "--no-deps" in compiling, "nothing that is not pinned comes with them"
    assert (tmp_path / "env/nvidia").is_symlink(), "the headers of torch's libraries"


def test_another_build_of_torch_ends_the_build_before_anything_is_compiled(tmp_path: Path) -> None:
    code, calls = install(tmp_path, "envs/gpu.txt", "13.0", "envs/gpu-compiled.txt", check=1)
    assert code == 1
    assert calls[-1].endswith("check_cuda.py 13.0")


def test_the_cpu_image_is_installed_in_one_step(tmp_path: Path) -> None:
    code, calls = install(tmp_path, "envs/cpu.txt")
    assert code == 0, calls
    assert not any("check_cuda" in call for call in calls)
    assert not (tmp_path / "env/nvidia").exists()


@pytest.mark.parametrize(("built", "words"), [(None, "built for CPUs"), ("12.6", "built for CUDA 12.6")])
def test_the_check_of_torch_says_what_it_found_and_what_helps(
    built: str | None, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = SimpleNamespace(__version__="2.13.0", version=SimpleNamespace(cuda=built))
    monkeypatch.setitem(sys.modules, "torch", torch)
    check = module("check_cuda")
    assert check.main("13.0") == 1
    said = capsys.readouterr().err
    assert words in said
    assert "PIP_FIND_LINKS=" in said
    torch.version.cuda = "13.0"
    assert check.main("13.0") == 0


# --- the definition --------------------------------------------------------------------------------------------------


def section(name: str) -> str:
    """A section of the H100 image's definition."""
    text = (ROOT / "containers/mpadam-h100.def").read_text(encoding="utf-8")
    return re.split(r"^%\w+", text.partition(f"\n%{name}")[2], maxsplit=1, flags=re.MULTILINE)[0]


def variables(script: str, **before: str) -> dict[str, str]:
    """The variables that the `export` and assignment lines of a section set."""
    lines = [line for line in script.splitlines() if re.match(r"\s*(export|memory=)", line)]
    script = "\n".join(["set -euo pipefail", *lines, "env"])
    environment = {"PATH": "/usr/bin:/bin", **before}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_transformer_engine_is_compiled_against_torchs_libraries_and_without_nccl_ep() -> None:
    found = variables(section("post"))
    assert found["NVTE_WITH_NCCL_EP"] == "0"
    assert found["NVTE_PYTORCH_FORCE_BUILD"] == "TRUE"
    assert found["CPATH"].split(":") == ["/opt/mpadam/nvidia/cudnn/include", "/opt/mpadam/nvidia/nccl/include"]
    assert "cudnn" not in section("arguments"), "the base has no cuDNN of its own"


def test_transformer_engine_loads_torchs_libraries() -> None:
    """It looks at LIBRARY_HOME first, then at CUDA_HOME, where the base has libraries of its own."""
    found = variables(section("environment"))
    homes = {name: found[f"{name}_HOME"] for name in ("CUDNN", "NVRTC", "CURAND")}
    nvidia = "/opt/mpadam/nvidia"
    assert homes == {"CUDNN": f"{nvidia}/cudnn", "NVRTC": f"{nvidia}/cu13", "CURAND": f"{nvidia}/cu13"}


def test_compilers_run_side_by_side_as_far_as_memory_goes() -> None:
    assert int(variables(section("post"))["MAX_JOBS"]) >= 1
    assert variables(section("post"), MAX_JOBS="3")["MAX_JOBS"] == "3"


def test_a_library_of_cuda_that_a_process_holds_twice_is_found() -> None:
    maps = [
        "7f00-7f01 r--p 00000000 fe:00 1  /opt/mpadam/lib/nvidia/cudnn/lib/libcudnn.so.9",
        "7f01-7f02 r-xp 00001000 fe:00 1  /opt/mpadam/lib/nvidia/cudnn/lib/libcudnn.so.9",
        "7f02-7f03 r--p 00000000 fe:00 2  /opt/mpadam/lib/nvidia/cudnn/lib/libcudnn_ops.so.9",
        "7f03-7f04 r--p 00000000 fe:00 3  /opt/mpadam/lib/nvidia/cu13/lib/libnvrtc.so.13",
        "7f04-7f05 rw-p 00000000 00:00 0",
    ]
    twice = module("test_modules").loaded_twice
    assert twice(maps) == {}
    system = "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.13.0"
    found = twice([*maps, f"7f06-7f07 r--p 00000000 fe:00 4  {system}"])
    assert found == {"libcudnn": ["/opt/mpadam/lib/nvidia/cudnn/lib/libcudnn.so.9", system]}
