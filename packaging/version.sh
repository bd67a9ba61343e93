#!/bin/sh
# Prints the version of a package of this tree. Of a git checkout the last commit's time and name stand behind that of Cargo.toml, by
# which deb and rpm take the package of a later commit for a newer one. A count of commits would be another one in a shallow clone.
set -eu
export LC_ALL=C TZ=UTC

house=$(dirname "$(dirname "$(realpath "$0")")")
version=$(cd "$house" && "${CARGO:-cargo}" pkgid --offline -p gpool-cli | sed 's/.*[#@]//')
commit=
if [ -e "$house/.git" ]; then
    commit=$(git -C "$house" log -1 --abbrev=8 --date=format-local:%Y%m%d%H%M%S --format=+%cd.g%h 2> /dev/null || true)
    if [ -n "$commit" ] && ! git -C "$house" diff --quiet HEAD 2> /dev/null; then
        commit=$commit.changed
    fi
fi
echo "$version$commit"
