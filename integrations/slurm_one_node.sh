#!/bin/sh
# A SLURM of this machine alone, to try `cape-run --cluster slurm`; not for real work.
#
#   integrations/slurm_one_node.sh start DIR   as root
#   integrations/slurm_one_node.sh stop DIR
#
# Needs Debian's slurmctld, slurmd, slurm-client and munge. /etc/slurm/slurm.conf becomes a link into
# DIR until it is stopped: submitit takes SLURM_CONF out of the environment. Two partitions: main, and
# urgent, whose jobs preempt main's, which are requeued. No accounting, no cgroups: processes are
# followed by their parents.
set -eu
[ $# = 2 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
action=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
export SLURM_CONF="$dir/slurm.conf"
default=/etc/slurm/slurm.conf

stop() {
    for name in slurmd slurmctld munged; do
        [ ! -f "$dir/$name.pid" ] || kill "$(cat "$dir/$name.pid")" 2>/dev/null || true
    done
    [ "$(readlink "$default")" != "$SLURM_CONF" ] || rm "$default"
}

start() {
    if [ -e "$default" ] && [ "$(readlink "$default")" != "$SLURM_CONF" ]; then
        echo "$default is there: this machine has a SLURM" >&2
        exit 1
    fi
    node=$(hostname -s)
    memory=$(($(awk '/^MemTotal/ {print $2}' /proc/meminfo) / 1024))
    mkdir -p "$dir/state" "$dir/spool"
    chmod 755 "$dir"
    [ -f "$dir/munge.key" ] || (umask 077; head -c 1024 /dev/urandom > "$dir/munge.key")
    cat > "$SLURM_CONF" <<END
ClusterName=one
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/munge.socket
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=5
ReturnToService=2
MailProg=/bin/true
NodeName=$node NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$node Default=YES MaxTime=INFINITE PriorityTier=1 State=UP
PartitionName=urgent Nodes=$node MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP
END
    : > "$dir/cgroup.conf"  # which SLURM looks for beside slurm.conf
    munged --force --key-file "$dir/munge.key" --socket "$dir/munge.socket" \
        --pid-file "$dir/munged.pid" --log-file "$dir/munged.log" --seed-file "$dir/munged.seed"
    slurmctld -f "$SLURM_CONF"
    slurmd -f "$SLURM_CONF"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        sinfo -h -o %T 2>/dev/null | grep -q idle && break
        sleep 1
    done
    mkdir -p "$(dirname "$default")"
    ln -sf "$SLURM_CONF" "$default"
    sinfo
}

case $action in
    start) start ;;
    stop) stop ;;
    *) echo "start or stop, not $action" >&2; exit 2 ;;
esac
