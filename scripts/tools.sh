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

fetch() { # PACKAGE PROGRAM…
	[ -e "$tools/$1.tried" ] && return
	touch "$tools/$1.tried"
	local folder=$tools/root/$1
	download() { (cd "$partial" && apt-get download -qq "$1" 2> /dev/null); }
	download "$1" || { apt-get update -qq 2> /dev/null && download "$1"; } || {
		echo "tools: $1 cannot be fetched; tests that need it are skipped" >&2
		return 0
	}
	dpkg -x "$partial/$1"_*.deb "$folder"
	for program in "${@:2}"; do
		local place
		place=$(find "$folder" -type f -name "$program" -path "*/usr/*bin*/*" | head -n 1)
		# Debian 12's Compose is a Python program that needs two dozen packages more.
		[ -n "$place" ] && ! head -c 2 "$place" | grep -q '#!' && ln -sf "$place" "$tools/$program"
	done
	return 0
}
fetch prometheus prometheus promtool
fetch docker-compose docker-compose
