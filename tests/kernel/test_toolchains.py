"""Real tool-chains work inside: interpreters, compilers, version control, archives; each in a fresh workspace and offline."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.policy.profiles import profile
from support.programs import PYTHON, python, shell

VISIBLE = "/usr/local/bin:/usr/bin:/bin"  # where a job's programs are


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips where the machine has one of these programs nowhere that a job could see it."""
    missing = [program for program in programs if shutil.which(program, path=VISIBLE) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed below /usr: {', '.join(missing)}")


async def build(workspace: Path, script: str, **changes: object) -> list[str]:
    """The lines that a bash script prints in the workspace, under the policy for builds; every command of it must succeed."""
    policy: Policy = profile("build", workspace=str(workspace), **changes)
    async with Executor(policy) as executor:
        result = await executor.run(shell(f"set -euo pipefail\n{script}"))
    assert result.ok, (result.outcome, result.stdout[-1000:], result.stderr[-2000:])
    return result.stdout.decode().splitlines()


def wheel(directory: Path) -> None:
    """A wheel with one module and one script, made by hand so that nothing has to be fetched."""
    directory.mkdir()
    files = {
        "greeting.py": "def main():\n    print('hello from a wheel')\n",
        "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "greeting-1.0.dist-info/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
    }
    record = "".join(f"{name},,\n" for name in files) + "greeting-1.0.dist-info/RECORD,,\n"
    with zipfile.ZipFile(directory / "greeting-1.0-py3-none-any.whl", "w") as archive:
        for name, text in {**files, "greeting-1.0.dist-info/RECORD": record}.items():
            archive.writestr(name, text)


def has_ensurepip() -> bool:
    return subprocess.run([PYTHON, "-c", "import ensurepip, venv"], capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.skipif(not has_ensurepip(), reason="the system's Python has no ensurepip")
async def test_python_makes_a_virtual_environment_and_pip_installs_a_wheel_offline(workspace: Path) -> None:
    wheel(workspace / "wheels")
    said = await build(
        workspace,
        "python3 -m venv env\n"
        "./env/bin/pip install --quiet --no-index --find-links wheels --disable-pip-version-check greeting\n"
        "./env/bin/greet; ./env/bin/python -c 'import greeting, sys; print(sys.prefix)'",
    )
    assert said == ["hello from a wheel", f"{workspace}/env"]


async def test_python_computes_in_processes_threads_and_sqlite(workspace: Path) -> None:
    script = """
import asyncio, concurrent.futures, multiprocessing, sqlite3, ssl, subprocess, tempfile
def square(x): return x * x
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(4) as pool:
        print(sum(pool.map(square, range(100))))
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        print(sum(threads.map(square, range(100))))
    with sqlite3.connect("data.db") as database:
        database.execute("pragma journal_mode=wal")
        database.execute("create table t (x integer)")
        database.executemany("insert into t values (?)", [(x,) for x in range(1000)])
    print(database.execute("select sum(x) from t").fetchone()[0])
    async def served():
        server = await asyncio.start_server(lambda r, w: (w.write(b"over tcp"), w.close()), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        print((await reader.read()).decode())
        writer.close()
        server.close()
    asyncio.run(served())
    print(subprocess.run(["echo", "from a child"], capture_output=True, text=True).stdout.strip())
"""
    async with Executor(Policy(workspace=str(workspace))) as executor:
        result = await executor.run(python(script))
    assert result.stdout.decode().splitlines() == ["328350", "328350", "499500", "over tcp", "from a child"]


@needs("sqlite3")
async def test_the_sqlite_shell_locks_and_writes(workspace: Path) -> None:
    assert await build(workspace, "sqlite3 d.db 'create table t(x); insert into t values (7); select x*6 from t'") == ["42"]


@needs("node")
async def test_node_runs_modules_workers_and_children(workspace: Path) -> None:
    (workspace / "main.mjs").write_text(
        "import { Worker } from 'node:worker_threads'; import { execFileSync } from 'node:child_process'; import http from 'node:http';\n"
        "console.log(execFileSync('echo', ['child']).toString().trim());\n"
        "const server = http.createServer((q, s) => s.end('served')).listen(0, '127.0.0.1', async () => {\n"
        "  console.log(await (await fetch(`http://127.0.0.1:${server.address().port}`)).text()); server.close();\n"
        "  new Worker('process.exit(3)', { eval: true }).on('exit', code => console.log('worker', code)); });\n"
    )
    assert await build(workspace, "node main.mjs") == ["child", "served", "worker 3"]


@needs("gcc", "g++", "make")
async def test_c_and_cplusplus_are_compiled_in_parallel_linked_and_run(workspace: Path) -> None:
    for number in range(6):
        (workspace / f"part{number}.c").write_text(f"int part{number}(void) {{ return {number}; }}\n")
    (workspace / "main.cc").write_text(
        "#include <iostream>\n#include <thread>\n#include <vector>\n"
         'extern "C" {' + "".join(f"int part{number}(void);" for number in range(6)) + "}\n"
        + "int main() { int sum = " + " + ".join(f"part{number}()" for number in range(6)) + ";\n"
        + "std::thread other([&] { sum *= 2; }); other.join(); std::cout << sum << std::endl; }\n"
    )  # fmt: skip
    parts = " ".join(f"part{number}.o" for number in range(6))
    (workspace / "Makefile").write_text(f"main: main.o {parts}\n\tg++ -pthread -o $@ $^\n")
    assert (await build(workspace, "make -j4 --no-print-directory CXX=g++ >make.log; ./main"))[-1] == "30"


@needs("git")
async def test_git_commits_branches_merges_and_clones(workspace: Path) -> None:
    said = await build(
        workspace,
        "export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.com GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.com\n"
        "git init -q -b main r; cd r; echo a >f; git add f; git commit -qm one\n"
        "git checkout -qb side; echo b >>f; git commit -qam two; git checkout -q main; git merge -q side; git gc -q\n"
        "cd ..; git clone -q r c; git -C c log --format=%s; git -C c fsck",
    )
    assert said == ["two", "one"]


@needs("perl")
async def test_perl_forks_and_matches(workspace: Path) -> None:
    assert await build(workspace, """perl -e 'my $p = fork // die; exit 4 unless $p; waitpid $p, 0; print $? >> 8, "\\n"'""") == ["4"]


async def test_bash_runs_jobs_pipes_substitutions_and_traps(workspace: Path) -> None:
    said = await build(
        workspace,
        "sleep 0.1 & wait $!; echo waited; paste <(seq 3) <(seq 4 6) | tr '\\t' ' '; trap 'echo bye' EXIT; coproc cat\n"
        "echo over >&${COPROC[1]}; read -r line <&${COPROC[0]}; echo $line",
    )
    assert said == ["waited", "1 4", "2 5", "3 6", "over", "bye"]


@needs("tar", "gzip", "xz")
async def test_archives_keep_modes_links_and_times(workspace: Path) -> None:
    said = await build(
        workspace,
        "mkdir -p a/b; echo x >a/b/f; chmod 640 a/b/f; ln -s f a/b/l; ln a/b/f a/h; touch -d @1000000000 a/b/f; chmod 775 a/b\n"
        "for kind in gz xz; do tar -caf a.tar.$kind a; mkdir $kind; tar -xpf a.tar.$kind -C $kind; done\n"
        "stat -c '%a %Y %h' gz/a/b/f; readlink xz/a/b/l; stat -c %a xz/a/b; cmp gz/a/h a/b/f && echo same",
    )
    assert said == ["640 1000000000 2", "f", "775", "same"]


@needs("javac", "java")
async def test_java_is_compiled_and_runs_threads(workspace: Path) -> None:
    (workspace / "Main.java").write_text(
        "import java.util.stream.*;\npublic class Main { public static void main(String[] a) throws Exception {\n"
        "Thread t = new Thread(() -> System.out.println(IntStream.range(0, 1000).parallel().sum())); t.start(); t.join(); } }\n"
    )
    assert await build(workspace, "javac Main.java; java Main") == ["499500"]


@needs("rustc")
async def test_rust_is_compiled_and_runs(workspace: Path) -> None:
    (workspace / "main.rs").write_text('fn main() { println!("{}", (1..=10).sum::<i32>()); }\n')
    assert await build(workspace, "rustc -o main main.rs; ./main") == ["55"]


@needs("go")
async def test_go_is_compiled_and_runs(workspace: Path) -> None:
    (workspace / "main.go").write_text('package main\nimport "fmt"\nfunc main() { fmt.Println(42) }\n')
    assert await build(workspace, "export GOCACHE=$PWD/cache GOFLAGS=-mod=mod; go run main.go") == ["42"]


@needs("gcc")
async def test_leaks_are_found_under_the_debug_profile_and_otherwise_the_program_says_what_it_lacks(workspace: Path) -> None:
    (workspace / "leak.c").write_text("#include <stdlib.h>\nint main(void) { volatile char *p = malloc(10); p[0] = 1; p = 0; return 0; }\n")
    await build(workspace, "gcc -fsanitize=address leak.c -o leak")
    async with Executor(profile("debug", workspace=str(workspace))) as executor:
        found = await executor.run(["./leak"])
        assert b"10 byte(s) leaked" in found.stderr
        blind = await (await executor.start_with_policy(["./leak"], profile("untrusted", workspace=str(workspace)))).result()
        assert (blind.exit_code, b"LeakSanitizer does not work under ptrace" in blind.stderr) == (1, True)
        off = await executor.start_with_policy(
            ["./leak"], profile("untrusted", workspace=str(workspace)), env={"ASAN_OPTIONS": "detect_leaks=0"}
        )
        assert (await off.result()).ok
