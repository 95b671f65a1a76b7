#!/usr/bin/env bash
# A Slurm of four make-believe nodes on this host, without systemd, for slurm_cluster.py. Needs root and the packages slurm-wlm and
# munge. usage: slurm_up.sh DIR [NODES=4]   prints the configuration's path; slurm_down.sh DIR ends it.
set -euo pipefail
dir=$(readlink -m "$1")
nodes=${2:-4}
host=$(hostname -s)
# slurmctld takes this port, and the nodes those from the fourth after it.
port=$("$(dirname "$0")/ports.py" $((nodes + 4)))
mkdir -p "$dir"/{state,log,run}
chmod 755 "$dir"

install -d -o munge -g munge -m 0755 /run/munge
install -d -o munge -g munge -m 0711 /var/lib/munge
install -d -o munge -g munge -m 0700 /var/log/munge
if ! munge -n 2> /dev/null | unmunge > /dev/null 2>&1; then
    setpriv --reuid=munge --regid=munge --clear-groups /usr/sbin/munged
    touch "$dir/run/own-munged"
fi
for _ in $(seq 50); do
    munge -n 2> /dev/null | unmunge > /dev/null 2>&1 && break
    sleep 0.1
done

for ((i = 1; i <= nodes; i++)); do mkdir -p "$dir/spool/n$i" "$dir/tmp/n$i"; done
chmod 1777 "$dir"/tmp/n*
cat > "$dir/slurm.conf" << CONF
ClusterName=fenwick
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
AuthType=auth/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
# Without a folder of its own for each node the PMIx folders collide.
TmpFS=$dir/tmp/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
DefMemPerCPU=500
MpiDefault=pmix
KillOnBadExit=1
KillWait=5
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=8
MinJobAge=3600
NodeName=n[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 4))-$((port + 3 + nodes))] CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF
CONF
export SLURM_CONF=$dir/slurm.conf
slurmctld
for ((i = 1; i <= nodes; i++)); do slurmd -N "n$i"; done
for _ in $(seq 150); do
    [ "$(sinfo -h -N -p low -t idle -o %N 2> /dev/null | sort -u | wc -l)" = "$nodes" ] && break
    sleep 0.2
done
if [ "$(sinfo -h -N -p low -t idle -o %N 2> /dev/null | sort -u | wc -l)" != "$nodes" ]; then
    echo "slurm_up.sh: after 30 s not all of $nodes nodes are idle; sinfo and the ends of the logs:" >&2
    sinfo -h -N -p low -o '%N %t' >&2 || true
    tail -n 5 "$dir"/log/*.log >&2
    "$(dirname "$0")/slurm_down.sh" "$dir" || true
    exit 1
fi
echo "$SLURM_CONF"
