#!/usr/bin/env bash
# Fetch Debian's Prometheus into .venv, where the tests that scrape a server look for it. Nothing is
# installed and no rights are needed; where it cannot be had, these tests skip themselves.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=.venv/prometheus
[ -x "$folder/usr/bin/prometheus" ] && exit 0
command -v prometheus promtool >/dev/null && exit 0
command -v apt-get >/dev/null && command -v dpkg >/dev/null || {
	echo "prometheus: no apt-get here: the tests that scrape will be skipped" >&2
	exit 0
}
partial=$(mktemp -d)
trap 'rm -rf "$partial"' EXIT
fetch() { (cd "$partial" && apt-get download -qq prometheus 2>/dev/null); }
if fetch || { apt-get update -qq 2>/dev/null && fetch; }; then
	dpkg -x "$partial"/prometheus_*.deb "$partial/unpacked"
	rm -rf "$folder"
	mkdir -p .venv
	mv "$partial/unpacked" "$folder"
else
	echo "prometheus: cannot be fetched: the tests that scrape will be skipped" >&2
fi
