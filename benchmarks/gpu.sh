#!/usr/bin/env bash
# What only a GPU can tell, from a checkout without a network, in parts that fit a loan of fifteen
# minutes together with its start: each ends after 280 seconds, the most wanted first.
#
#     bash benchmarks/gpu.sh 1      training steps, eager and compiled; twins; attention by length
#     bash benchmarks/gpu.sh 2      pytest -m gpu: parity with the CPU, the hosts' trainers; Table 9
#     bash benchmarks/gpu.sh 3      the study cifar10_192, a seed of it, 570 s; the next call goes on
#     bash benchmarks/gpu.sh pack   beforehand, where there is a network: see below
#
# Every line is printed when it is known, and rows are appended to the CSV files then, so that what
# is cut off has lost nothing. $OUT (out/gpu) gets the report gpu<part>.md, the CSV files, and what
# went to stderr. SECONDS_OF_PART changes the limit.
#
# BEFORE names another checkout, which part 1 measures in turn with this one, each by its own
# benchmarks: first what is most wanted, rows labelled "before" and "after". A commit's is made by
#     mkdir -p out/before && git archive COMMIT cape_plugins benchmarks | tar -xC out/before
#
# Nothing needs to be installed but torch, timm and tabulate. A machine without fairseq and ESPnet
# takes them from out/pack, which `pack` fills with their wheels (35 MB, for this Python), without
# what torch and timm bring along, with timm's train.py if TIMM_SCRIPTS names its folder, and with
# CIFAR-10 (18 MB) if CIFAR10 names its folder of train/ and test/. What is missing still is left
# out, and the report says so. DRY_RUN=1: the same, tiny, on the CPU. SEED (0) is that of part 3.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
pack=out/pack

fill_pack() {
    "$python" -m pip wheel --quiet --no-deps --no-build-isolation -c constraints/python-3.12.txt -w "$pack" \
        espnet fairseq-fixed annotated-types antlr4-python3-runtime bitarray cffi configargparse \
        decorator docstring-parser editdistance humanfriendly hydra-core jiwer librosa omegaconf omniio orjson \
        platformdirs pooch psutil pycparser pydantic pydantic-core rapidfuzz soundfile soxr submitit \
        torch-complex typeguard typing-inspection tyro || exit 1
    [ -z "${TIMM_SCRIPTS:-}" ] || cp "$TIMM_SCRIPTS/train.py" "$pack" || exit 1
    [ -z "${CIFAR10:-}" ] || tar -C "$CIFAR10" -cJf "$pack/cifar10.tar.xz" train test || exit 1
    du -sh "$pack"
}

here() { "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }

say() { printf "$@" | tee -a "$report"; }

# step MODULE NAME SECONDS COMMAND…: a section of the report, unless the module is missing
step() {
    local module=$1 name=$2 seconds=$3 start=$SECONDS outcome code=0 said
    shift 3
    ((seconds < limit - SECONDS)) || seconds=$((limit - SECONDS))
    [ -z "$dry" ] || seconds=1800 # a CPU that others use may be slow
    say '\n## %s\n\n`%s`\n\n' "$name" "$*"
    if ! here "$module"; then
        outcome="left out: no $module here"
    elif ((seconds < 10)); then
        outcome="left out: no time left"
    else
        echo "--- $name" >>"$log"
        said=$(wc -l <"$log")
        timeout -k 5 "$seconds" "$@" 2>>"$log" | tee -a "$report"
        code=${PIPESTATUS[0]}
        case $code in
            0) outcome=done ;;
            124 | 137) outcome="CUT OFF after $seconds s" ;;
            *) outcome="FAILED" && tail -n +$((said + 1)) "$log" | tail -n 15 ;;
        esac
    fi
    ((code == 0)) || failed=1
    say '\n%s: %s, %s s\n' "$name" "$outcome" "$((SECONDS - start))"
}

# each MODULE NAME SECONDS SCRIPT ARGUMENT…: of this checkout, and before that of BEFORE
each() {
    local module=$1 name=$2 seconds=$3 script=$4
    shift 4
    local given=(--device "$device" --dtype bfloat16 --csv "$out/gpu1-$script.csv")
    if [ -n "$before" ]; then
        PYTHONPATH=$before:$PYTHONPATH step "$module" "$name, before" "$seconds" \
            "$python" "$before/benchmarks/$script.py" "${given[@]}" --label before "$@"
    fi
    step "$module" "$name${before:+, after}" "$seconds" \
        "$python" "benchmarks/$script.py" "${given[@]}" ${before:+--label after} "$@"
}

part_1() {
    local few=(--rounds 10) sizes=(256 24 64) images=128 lengths=(4096 1024 8192) compiler=inductor
    local first=(nopos cape rope relpos alibi) some=(cape rope relpos alibi) stock=()
    local rest=(sinpos cape_rope cape_alibi relpos_first)
    [ -z "$before" ] || stock=(--stock vit_small_patch16_rope_mixed_224 vit_small_patch16_224)
    if [ -n "$dry" ]; then
        few=(--rounds 1 --tiny) sizes=(1 1 1) images=1 lengths=(64) compiler=aot_eager
        first+=("${rest[@]}" abspos random random_rope pose_rope) some=(cape)
        stock=(--stock vit_small_patch16_224)
    fi
    local cases=(--cases vit_small asr_36 wmt_base --batch "${sizes[@]}" "${few[@]}")
    each torch "Steps" 80 variants "${cases[@]}" --pos "${first[@]}"
    each torch "Attention alone" 40 attention "${few[@]:0:2}" --lengths "${lengths[@]}"
    each timm "Twins" 40 twins "${few[@]}" --batch "$images" ${stock[@]+"${stock[@]}"}
    # compiling takes longer than measuring, so only this checkout's
    before='' each torch "Compiled steps" 100 variants --cases vit_small asr_12 wmt_base \
        --batch "${sizes[@]}" "${few[@]}" --pos "${some[@]}" --compile "$compiler"
    [ -z "$dry" ] || return # nothing new below
    before='' each torch "Steps of the other variants" 120 variants "${cases[@]}" --pos "${rest[@]}"
    before='' each torch "Conformer beside ESPnet's own" 60 variants --unit stock \
        --cases conformer_12 conformer_12_30s --batch 24 8 "${few[@]}" --pos rope alibi cape relpos
    before='' each torch "Recognition by it" 40 variants --inference --unit stock \
        --cases conformer_12 conformer_12_30s --batch 24 8 "${few[@]}" --pos rope alibi cape relpos
}

part_2() {
    local tests=("$python" -m pytest -q -m gpu -p no:cacheprovider --tb=line)
    step torch "The core" 130 "${tests[@]}" tests/gpu/test_core.py
    step timm "The hosts" 130 "${tests[@]}" tests/gpu/test_hosts.py
    step fairseq "The hosts' trainers in half precision" 110 "${tests[@]}" tests/gpu/test_trainers.py
    step fairseq "Table 9 in fp16" 240 "$python" benchmarks/relpos_cost.py --device "$device" \
        --dtype float16 --csv "$out/gpu2-table9.csv" \
        ${dry:+--rounds 1 --layers 1 --batch 1 --parts encoder --lengths 10 --contexts 10}
}

part_3() {
    local images=${CIFAR10:-$out/cifar10}
    local study=("$python" -c "from cape_studies.run import main; main()"
        cifar10_192 --data "$images" "seeds=[${SEED:-0}]" --timm-scripts "$TIMM_SCRIPTS"
        --out "$out/studies" ${dry:+--quick "run=[cape_low]"})
    [ -d "$images" ] || ! [ -f "$pack/cifar10.tar.xz" ] ||
        { mkdir -p "$images" && tar -C "$images" -xJf "$pack/cifar10.tar.xz"; }
    if [ ! -f "$TIMM_SCRIPTS/train.py" ] || [ ! -d "$images/train" ]; then
        say '\nThe study: left out: no train.py of timm, or no CIFAR-10, here, 0 s\n'
        return
    fi
    [ -n "$dry" ] || study+=(--gpus 1)
    step submitit "The study" 540 "${study[@]}" --jobs "${dry:-9}"
    step submitit "What of it is done" 25 "$python" -c \
        "from cape_studies.report import main; main()" \
        "${study[@]:3}" --write "$out/gpu3-report"
}

case ${1:-} in
    pack) fill_pack && exit ;;
    [1-3]) ;;
    *) echo "gpu.sh: got '${1:-}', choose a part: 1, 2, 3, or pack" >&2 && exit 2 ;;
esac

dry=${DRY_RUN:+1}
device=${dry:+cpu}
device=${device:-cuda}
[ -z "$dry" ] || export OMP_NUM_THREADS=1 # more wait for each other where a CPU is shared
limit=280 # seconds, of a part
[ "$1" != 3 ] || limit=570
limit=${SECONDS_OF_PART:-$limit}
before=${BEFORE:-}
if [ -n "$before" ] && ! [ -d "$before/cape_plugins" ]; then
    echo "gpu.sh: BEFORE=$before has no folder cape_plugins: name a checkout of this project" >&2
    exit 2
fi
out=${OUT:-out/gpu}
report=$out/gpu$1.md
log=$out/gpu$1.stderr.txt
failed=0
mkdir -p "$out" && rm -rf "$out/gpu$1"[-.]* || exit 1
export PYTHONUNBUFFERED=1 CAPE_DEVICE=$device PYTHONPATH=$PWD:$PWD/studies${PYTHONPATH:+:$PYTHONPATH} TIMM_SCRIPTS=${TIMM_SCRIPTS:-$pack}
if ! { here fairseq && here espnet2; } && compgen -G "$pack/*.whl" >/dev/null; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir \
        --target "$site" "$pack"/*.whl && PYTHONPATH+=:$site
fi

say '# Part %s\n' "$1${dry:+, a dry run} on $device"
"part_$1"
exit $failed
