#!/usr/bin/env bash
# asr.sh calls this at the end of its scoring, with the folder of the experiment:
#
#   local/score.sh [--dumpdir dump/raw] [--bins "10 15 20"] exp/asr_train_asr_cape_raw_en_char
#
# WER by duration, from greedy CTC decoding of the best checkpoint: <exp>/cape_eval.csv.
# Options reach it through asr.sh --local_score_opts "...".
set -e
set -u
set -o pipefail

dumpdir=dump/raw
bins="10 15 20"          # seconds; the paper's
python=${python:-python3}
device=${device:-cpu}

while [ $# -gt 1 ]; do
    case $1 in
        --dumpdir) dumpdir=$2 ;;
        --bins) bins=$2 ;;
        --python) python=$2 ;;
        --device) device=$2 ;;
        *) echo "$0: unknown option $1" >&2; exit 2 ;;
    esac
    shift 2
done
if [ $# -ne 1 ]; then
    echo "Usage: $0 [--dumpdir dir] [--bins \"10 15 20\"] [--device cpu] <asr_exp>" >&2
    exit 2
fi
asr_exp=$1

model=${asr_exp}/valid.cer_ctc.best.pth
if [ ! -e "${model}" ]; then
    echo "$0: no ${model}: not a CTC model of conf/cape, no WER by duration"
    exit 0
fi

# the test sets that asr.sh has decoded: <exp>/<inference>/<set>/text
sets=()
for text in "${asr_exp}"/*/*/text; do
    name=$(basename "$(dirname "${text}")")
    if [ -f "${dumpdir}/${name}/wav.scp" ] && [[ " ${sets[*]-} " != *" ${name}=${dumpdir}/${name} "* ]]; then
        sets+=("${name}=${dumpdir}/${name}")
    fi
done
if [ "${#sets[@]}" -eq 0 ]; then
    echo "$0: no decoded test set in ${asr_exp} that ${dumpdir} has too" >&2
    exit 1
fi

# shellcheck disable=SC2086
${python} -m cape_studies.evaluate espnet \
    --model "$(basename "${asr_exp}")=${model}" \
    --data "${sets[@]}" \
    --bins ${bins} \
    --device "${device}" \
    --csv "${asr_exp}/cape_eval.csv" --overwrite
