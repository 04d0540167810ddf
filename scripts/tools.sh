#!/usr/bin/env bash
# Fetch programs that check what tuner writes (promtool, Prometheus, Docker Compose) into .venv/tools,
# from Debian's packages. Nothing is installed and no rights are needed; a test whose program cannot
# be had is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/.venv/tools
mkdir -p "$tools/root"
command -v apt-get > /dev/null && command -v dpkg > /dev/null || exit 0
partial=$(mktemp -d)
trap 'rm -rf "$partial"' EXIT

download() { # PACKAGE…
	(cd "$partial" && apt-get download -qq "$@" 2> /dev/null)
}

fetch() { # PACKAGE PROGRAM…
	[ -e "$tools/$1.tried" ] && return
	touch "$tools/$1.tried"
	local folder=$tools/root/$1
	download "$1" || { apt-get update -qq 2> /dev/null && download "$1"; } || {
		echo "tools: $1 cannot be fetched; tests that need it are skipped" >&2
		return 0
	}
	dpkg -x "$partial/$1"_*.deb "$folder"
	for program in "${@:2}"; do
		local place
		place=$(find "$folder" -type f -name "$program" -path "*/usr/*bin*/*" | head -n 1)
		[ -n "$place" ] || continue
		if head -c 2 "$place" | grep -q '#!'; then with_packages "$1" "$place" "$tools/$program"; else
			ln -sf "$place" "$tools/$program"
		fi
	done
	return 0
}

with_packages() { # PACKAGE SCRIPT PLACE: Compose of Debian 12 is a Python program
	local folder=$tools/root/$1 no=(--no-{recommends,suggests,conflicts,breaks,replaces,enhances})
	# shellcheck disable=SC2046 # several packages
	download $(apt-cache depends --recurse "${no[@]}" "$1" | grep '^python3-' | grep -v minimal) ||
		return 0
	for package in "$partial"/python3-*.deb; do dpkg -x "$package" "$folder"; done
	printf '#!/bin/sh\nPYTHONPATH=%s exec /usr/bin/python3 %s "$@"\n' \
		"$folder/usr/lib/python3/dist-packages" "$2" > "$3"
	chmod +x "$3"
}

fetch prometheus prometheus promtool
fetch docker-compose docker-compose
