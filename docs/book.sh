#!/bin/sh
# Makes the book of the manual with mdbook: book.sh DESTINATION. Pages link to others at the top of the repository and to
# files in it, so all of these are laid out as they lie here, and the list of pages with them.
set -eu
destination=$(realpath -m "$1")
house=$(dirname "$(dirname "$(realpath "$0")")")
work=$destination.source

rm -rf "$work"
mkdir -p "$work/src/configs" "$work/src/policy/simulator"
sed 's/^src = .*/src = "src"/; /^build-dir/d' "$house/docs/book.toml" > "$work/book.toml"
# Another default would rename README, and not the links to it.
sed -i 's/^create-missing.*/&\nuse-default-preprocessors = false/' "$work/book.toml"
cp -r "$house/docs" "$house"/*.md "$house/LICENSE" "$work/src/"
cp -r "$house/configs/hosts" "$work/src/configs/"
cp -r "$house/policy/simulator/scenarios" "$work/src/policy/simulator/"
mkdir -p "$work/src/tests/gpu"
cp "$house/tests/gpu/README.md" "$work/src/tests/gpu/"
{
    sed 's/](\([^)]*\.md\))/](docs\/\1)/' "$house/docs/SUMMARY.md"
    printf '\n# At the top of the repository\n\n'
    for page in README SPECIFICATION CHANGELOG CONTRIBUTING SECURITY THIRD-PARTY; do
        echo "- [$page]($page.md)"
    done
    echo "- [What is measured on a GPU](tests/gpu/README.md)"
    for page in "$house"/docs/measurements/*.md; do
        echo "- [$(sed -n 's/^# //p' "$page" | head -1)](docs/measurements/$(basename "$page"))"
    done
} > "$work/src/SUMMARY.md"
# The list of pages stands beside every page of the book.
sed -i 's/(docs\/SUMMARY.md)/(docs\/introduction.md)/' "$work/src/README.md"
rm "$work/src/docs/SUMMARY.md" "$work/src/docs/book.toml" "$work/src/docs/book.sh"
mdbook build --dest-dir "$destination" "$work"
# The first page lies in a folder, and a copy of it here would lead astray.
echo '<meta http-equiv="refresh" content="0; url=docs/introduction.html">' > "$destination/index.html"
rm -rf "$work"
