#!/usr/bin/env bash
# What only a GPU can tell, in parts of under ten minutes, from a checkout without a network.
#
#     bash benchmarks/gpu.sh 1      training steps: all variants under AMP, some under torch.compile
#     bash benchmarks/gpu.sh 2      the paper's Table 9 in fp16; the hosts' trainers in half precision
#     bash benchmarks/gpu.sh 3      the study cifar10_192, a seed of it; the next call goes on
#     bash benchmarks/gpu.sh pack   beforehand, where there is a network: see below
#
# $OUT (out/gpu) gets a report gpu<part>.md, its tables as CSV, and what went to stderr. Nothing
# needs to be installed but torch, timm and tabulate. A machine without fairseq and ESPnet
# takes them from out/pack, which `pack` fills with their wheels (35 MB, for this Python), without
# what torch and timm bring along, with timm's train.py if TIMM_SCRIPTS names its folder, and with
# CIFAR-10 (18 MB) if CIFAR10 names its folder of train/ and test/. What is missing still is left
# out, and the report says so. DRY_RUN=1: the same, tiny, on the CPU. SEED (0) is that of part 3.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
pack=out/pack

fill_pack() {
    "$python" -m pip wheel --quiet --no-deps --no-build-isolation -c constraints.txt -w "$pack" \
        espnet fairseq-fixed annotated-types antlr4-python3-runtime bitarray cffi configargparse \
        decorator docstring-parser editdistance humanfriendly hydra-core jiwer librosa omegaconf omniio orjson \
        platformdirs pooch psutil pycparser pydantic pydantic-core rapidfuzz soundfile soxr submitit \
        torch-complex typeguard typing-inspection tyro || exit 1
    [ -z "${TIMM_SCRIPTS:-}" ] || cp "$TIMM_SCRIPTS/train.py" "$pack" || exit 1
    [ -z "${CIFAR10:-}" ] || tar -C "$CIFAR10" -cJf "$pack/cifar10.tar.xz" train test || exit 1
    du -sh "$pack"
}

here() { "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }

# step MODULE NAME SECONDS COMMAND…: a section of the report, unless the module is missing
step() {
    local module=$1 name=$2 seconds=$3 start=$SECONDS outcome code=0
    shift 3
    ((seconds < limit - SECONDS)) || seconds=$((limit - SECONDS))
    [ -z "$dry" ] || seconds=1800 # a CPU that others use may be slow
    printf '\n## %s\n\n`%s`\n\n' "$name" "$*" >>"$report"
    if ! here "$module"; then
        outcome="left out: no $module here"
    elif ((seconds < 5)); then
        outcome="left out: no time left"
    else
        echo "--- $name" >>"$log"
        timeout -k 5 "$seconds" "$@" >>"$report" 2>>"$log" || code=$?
        case $code in
            0) outcome=done ;;
            124 | 137) outcome="NOT DONE in $seconds s" ;;
            *) outcome="FAILED" && tail -n 15 "$log" ;;
        esac
    fi
    ((code == 0)) || failed=1
    summary+="| $name | $outcome | $((SECONDS - start)) s |"$'\n'
}

part_1() {
    local one=("$python" benchmarks/variants.py --device "$device" --dtype bfloat16
        --rounds "${dry:-15}" --csv "$out/gpu1-steps.csv" --unit nopos ${dry:+--tiny})
    local some=(--pos nopos cape rope alibi --compile ${dry:+aot_eager})
    step timm "ViT-S under AMP" 70 "${one[@]}" --cases vit_small --batch "${dry:-256}"
    step espnet2 "36 layers of speech, 240 s, under AMP" 120 "${one[@]}" --cases asr_36 \
        --batch "${dry:-24}"
    step fairseq "WMT base under AMP" 90 "${one[@]}" --cases wmt_base --batch "${dry:-64}"
    step timm "ViT-S, torch.compile" 90 "${one[@]}" --cases vit_small --batch "${dry:-256}" \
        "${some[@]}"
    [ -z "$dry" ] || return # nothing new below, and compiling is slow on a CPU
    step timm "ViT-B under AMP" 70 "${one[@]}" --cases vit_base --batch 128
    step timm "ViT-B, torch.compile" 90 "${one[@]}" --cases vit_base --batch 128 \
        "${some[@]}"
    step fairseq "WMT base, torch.compile" 120 "${one[@]}" --cases wmt_base --batch 64 \
        "${some[@]}"
    step espnet2 "36 layers of speech, torch.compile" 240 "${one[@]}" --cases asr_36 --batch 24 \
        "${some[@]}"
}

part_2() {
    step fairseq "Table 9 in fp16" 240 "$python" benchmarks/relpos_cost.py --device "$device" \
        --dtype float16 --csv "$out/gpu2-table9.csv" \
        ${dry:+--rounds 1 --layers 1 --batch 1 --parts encoder --lengths 10 --contexts 10}
    step torch "The hosts' trainers in half precision" 320 "$python" benchmarks/trainers.py \
        --device "$device" --csv "$out/gpu2-trainers.csv" --jobs "$jobs" ${dry:+--pos cape}
}

part_3() {
    local images=${CIFAR10:-$out/cifar10}
    local study=("$python" -c "from cape_studies.experiments.run import main; main()"
        cifar10_192 --data "$images" --seeds "${SEED:-0}" --jobs "${dry:-9}"
        --out "$out/studies" ${dry:+--quick --variants cape_low})
    [ -d "$images" ] || ! [ -f "$pack/cifar10.tar.xz" ] ||
        { mkdir -p "$images" && tar -C "$images" -xJf "$pack/cifar10.tar.xz"; }
    if [ ! -f "$TIMM_SCRIPTS/train.py" ] || [ ! -d "$images/train" ]; then
        summary+="| The study | left out: no train.py of timm, or no CIFAR-10, here | 0 s |"$'\n'
        return
    fi
    [ -n "$dry" ] || study+=(--gpus 1)
    step submitit "The study" 540 "${study[@]}"
    step submitit "What of it is done" 25 "$python" -c \
        "from cape_studies.experiments.report import main; main()" \
        "$out/studies/cifar10_192" --out "$out/gpu3-report"
}

case ${1:-} in
    pack) fill_pack && exit ;;
    [1-3]) ;;
    *) echo "gpu.sh: got '${1:-}', choose a part: 1, 2, 3, or pack" >&2 && exit 2 ;;
esac

dry=${DRY_RUN:+1}
device=${dry:+cpu} jobs=${dry:+2}
device=${device:-cuda} jobs=${jobs:-8}
limit=570 # seconds, of a part
out=${OUT:-out/gpu}
report=$out/gpu$1.md
log=$out/gpu$1.stderr.txt
failed=0
summary=$'| | | |\n|---|---|---|\n'
mkdir -p "$out" && rm -rf "$out/gpu$1"[-.]* || exit 1
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} TIMM_SCRIPTS=${TIMM_SCRIPTS:-$pack}
if ! { here fairseq && here espnet2; } && compgen -G "$pack/*.whl" >/dev/null; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir \
        --target "$site" "$pack"/*.whl && PYTHONPATH+=:$site
fi

echo "# Part $1${dry:+, a dry run} on $device" >"$report"
"part_$1"
printf '\n## Summary\n\n%s' "$summary" >>"$report"
cat "$report"
exit $failed
