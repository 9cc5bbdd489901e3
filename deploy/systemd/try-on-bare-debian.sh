#!/usr/bin/env bash
# Does what README.md here says under "Install" on a bare Debian 12 whose process 1 is systemd, with a Slurm of one node; kills the code
# server, stops all, boots again, and shows what systemd says each time. As root on Debian, with debootstrap and systemd-container:
#   deploy/systemd/try-on-bare-debian.sh /srv/bare
# Package indexes are those of the environment (PIP_*, UV_*, SSL_CERT_FILE); BIND="/dir ..." shows the machine more directories.
set -euo pipefail
root=${1:?the directory of the new machine}
source=$(cd "$(dirname "$0")/../.." && pwd)

[ ! -e "$root" ] || { echo "$root exists; name a directory that does not" >&2; exit 2; }
debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,ca-certificates,procps,iproute2,munge,slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins bookworm "$root" >"$root.log"
cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
cp "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/ssl/certs/ca-certificates.crt"
mkdir -p "$root/source" "$root/var/log/nodes" "$root/etc/slurm"

boot() {
  binds=(--bind-ro="$source:/source")
  for directory in ${BIND:-}; do binds+=(--bind-ro="$directory"); done
  systemd-nspawn --quiet --directory="$root" --boot --register=no --keep-unit --hostname=bare "${binds[@]}" >"$root.console" 2>&1 &
  nspawn=$!
  for _ in $(seq 60); do inside systemctl is-system-running --wait >/dev/null 2>&1 && break; sleep 1; done || true
}

inside() {
  leader=$(pgrep --parent "$nspawn" | head -n 1)
  packages=$(env | grep -E '^(PIP|UV)_|^SSL_CERT_FILE=' || true)
  # shellcheck disable=SC2086 # each of them is one word
  nsenter --target "$leader" --mount --uts --ipc --pid --cgroup --root --wd env -i HOME=/root \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin $packages "$@"
}

slurm() {
  inside bash -ec '
    name=$(hostname); mkdir -p /var/spool/slurmctld /var/spool/slurmd /var/log/slurm
    for number in 0 1 2 3 4 5 6 7; do touch "/dev/nvidia$number"; done
    printf "%s\n" ClusterName=bare "SlurmctldHost=$name(127.0.0.1)" SlurmUser=root StateSaveLocation=/var/spool/slurmctld \
      SlurmdSpoolDir=/var/spool/slurmd SlurmctldPidFile=/run/slurmctld.pid SlurmdPidFile=/run/slurmd.pid ReturnToService=1 \
      ProctrackType=proctrack/linuxproc TaskPlugin=task/none GresTypes=gpu SlurmctldLogFile=/var/log/slurm/slurmctld.log \
      SlurmdLogFile=/var/log/slurm/slurmd.log "NodeName=$name NodeAddr=127.0.0.1 RealMemory=500 Gres=gpu:h100:8" \
      "PartitionName=train Nodes=ALL Default=YES" >/etc/slurm/slurm.conf
    echo "Name=gpu Type=h100 File=/dev/nvidia[0-7]" >/etc/slurm/gres.conf
    systemctl restart slurmctld slurmd; echo "2026-01-01T00:00:00 $name kernel: boot" >"/var/log/nodes/$name.log"'
}

as_units_see() {
  inside systemd-run --quiet --pipe --wait --uid=ops_pipelines -p EnvironmentFile=/etc/ops_pipelines/environment \
    -E PATH=/opt/ops_pipelines/.venv/bin:/usr/local/bin:/usr/sbin:/usr/bin /opt/ops_pipelines/.venv/bin/ops-pipelines "$@"
}

show() {
  echo "== $1"
  as_units_see status --wait 120 | head -n 5 || true # 3 where something is blind: there is no such store
  inside systemctl is-active ops-pipelines-{code,daemon,webserver,serve}.service | paste -sd ' '
}

trap 'inside systemctl poweroff || true; wait || true' EXIT
boot
slurm
inside apt-get update -qq
# The first block of commands under "Install", as it is there.
inside bash -ec "$(awk '/^## Install/ {on = 1} on && /^```/ {if (block++) exit; next} block' "$source/deploy/systemd/README.md" \
  | sed 's#YOUR_COPY#/source#; s#^apt-get install#& -qq --no-install-recommends#')"
show "installed"
inside systemctl kill --signal=KILL --kill-whom=main ops-pipelines-code.service
sleep 15
show "the code server killed"
inside systemctl stop ops-pipelines.target
for _ in $(seq 60); do inside pgrep -u ops_pipelines >/dev/null || break; sleep 1; done
echo "== stopped: $(inside pgrep -c -u ops_pipelines || true) processes left"
inside systemctl poweroff && wait "$nspawn" || true
boot
slurm
show "booted again"
as_units_see doctor || [ $? -eq 3 ]
