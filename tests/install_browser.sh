# The report is tested in a real browser. Where Chromium is missing and may be installed, it is; elsewhere those tests
# are skipped, and say so.
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "No Chromium here, and no right to install it: the tests of the report in a browser are skipped."
    exit 0
fi
echo "Installing Chromium for the tests of the report (a minute or two)"
export DEBIAN_FRONTEND=noninteractive
{ apt-get update -qq && apt-get install -y -qq chromium chromium-driver fonts-noto-cjk; } >/dev/null 2>&1 ||
    echo "Chromium could not be installed: the tests of the report in a browser are skipped."
