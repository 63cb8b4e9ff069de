# Launching is tested with a real Slurm and a real sshd. Where they are missing and may be installed, they are; elsewhere
# those tests are skipped, and say so.
PATH=$PATH:/usr/sbin:/sbin # where Debian keeps daemons
missing=""
for pair in slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client munged:munge sshd:openssh-server rsync:rsync; do
    command -v "${pair%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
if [ -z "$missing" ]; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "No$missing here, and no right to install: the tests that need them are skipped."
    exit 0
fi
echo "Installing$missing for the tests of launching (a minute)"
export DEBIAN_FRONTEND=noninteractive
# Nothing of it is started here: the tests start what they need themselves, on the loopback interface.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
    trap 'rm -f $policy' EXIT
fi
# shellcheck disable=SC2086
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1 ||
    echo "They could not be installed: the tests that need them are skipped."
