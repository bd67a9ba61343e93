#!/bin/sh
# Puts all that the suite for a real GPU needs into one folder, target/gpu-bundle, which runs on a machine that has a GPU,
# Python and root, and nothing else of ours: no compiler, no network.
#
#     tests/gpu/bundle.sh [STAGE] [FOLDER]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
stage=${1:-$root/target/gpool}
bundle=${2:-$root/target/gpu-bundle}

rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/libc" "$bundle/runc" "$bundle/suite"
cp "$stage/bin/gpool" "$stage/bin/gpool-runtime" "$stage/bin/gpool-supervisor" "$stage/bin/gpool-launch-cost" "$bundle/bin/"
cp -r "$stage/libexec" "$stage/lib" "$bundle/"
cp -r "$here/suite/." "$bundle/suite/suite"
find "$bundle" -name __pycache__ -prune -exec rm -rf {} +

# The newest symbols of glibc that our programs ask for, and the loader and libraries of this machine for one that has
# none so new.
for program in gpool gpool-supervisor gpool-launch-cost; do
    objdump -T "$bundle/bin/$program"
done | grep -o 'GLIBC_2\.[0-9]*' | sort -t. -k2 -n -u | tail -n 1 | sed 's/GLIBC_//' > "$bundle/GLIBC"
for library in ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libgcc_s.so.1 libdl.so.2 libpthread.so.0; do
    cp -L "/lib/x86_64-linux-gnu/$library" "$bundle/libc/"
done
# One that is linked statically needs no library.
runc=$(command -v runc || true)
if [ -n "$runc" ]; then
    cp -L "$runc" "$bundle/runc/runc"
    seccomp=$(ldd "$runc" 2> /dev/null | sed -n 's/.*libseccomp\.so\.2 => \(\/[^ ]*\).*/\1/p')
    [ -z "$seccomp" ] || cp -L "$seccomp" "$bundle/runc/libseccomp.so.2"
fi
# Of the programs, as they were built, and of the suite, as it is now.
cp "$stage/COMMIT" "$bundle/COMMIT" 2> /dev/null || echo unknown > "$bundle/COMMIT"
git -C "$root" describe --always --dirty --exclude '*' > "$bundle/SUITE_COMMIT" 2> /dev/null \
    || echo unknown > "$bundle/SUITE_COMMIT"
cat > "$bundle/run" <<'RUN'
#!/bin/sh
# As root: ./run [--part 1] [--stages a,b] [--budget SECONDS] [--out FOLDER] [--list]
bundle=$(cd "$(dirname "$0")" && pwd)
PYTHONPATH=$bundle/suite PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 exec python3 -m suite.main --bundle "$bundle" "$@"
RUN
chmod +x "$bundle/run"
du -sh "$bundle" | sed 's/\t/ in /'
# Last, where it is seen.
if [ -z "$runc" ]; then
    echo "WARNING: there is no runc here, so the bundle has none. On a machine without runc no container is tried:" >&2
    echo "WARNING: environment.container says \"skipped\" there. Install runc here and make the bundle again." >&2
fi
