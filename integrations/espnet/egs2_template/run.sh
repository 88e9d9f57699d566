#!/usr/bin/env bash
# The CAPE paper's recipes in egs2/wsj/asr1 or egs2/tedlium3/asr1; README.md says where to copy this.
#
#   ./run_cape.sh <variant> [options of asr.sh]      e.g. ./run_cape.sh cape --stop_stage 11
#   ngpu=4 ./run_cape.sh cape_padding_free
#
# Not run by those who wrote it: asr.sh needs Kaldi's and sctk's tools. Its options were read in its source.
set -e
set -u
set -o pipefail

if [ $# -lt 1 ]; then
    echo "Usage: $0 <variant> [options of asr.sh]; variants: conf/cape/variants.yaml" >&2
    exit 2
fi
variant=$1
shift

ngpu=${ngpu:-1}
asr_args=${asr_args:-}   # more options of asr_train, such as those of an ablation of variants.yaml
corpus=${corpus:-$(basename "$(dirname "${PWD}")")}
python=${python:-python3}

case ${variant} in
    seq2seq_*)
        recipe=train_asr_seq2seq
        gpu_seconds=50
        inference_config=conf/cape/decode_asr_seq2seq.yaml
        inference_asr_model=valid.acc.best.pth
        ;;
    *)
        recipe=train_asr
        gpu_seconds=240
        inference_config=conf/cape/decode_asr_ctc.yaml
        inference_asr_model=valid.cer_ctc.best.pth
        ;;
esac
accum=16
if [ "${ngpu}" -lt 1 ] || [ $((accum % ngpu)) -ne 0 ]; then
    echo "$0: ngpu must divide ${accum}, the paper's GPUs, got ${ngpu}" >&2
    exit 2
fi
# ESPnet's batches are shared by the GPUs
batch_args="--batch_bins $((gpu_seconds * 16000 * ngpu)) --accum_grad $((accum / ngpu))"

case ${corpus} in
    wsj)
        train_set=train_si284
        valid_set=test_dev93
        test_sets="test_dev93 test_eval92"
        corpus_opts="--nlsyms_txt data/nlsyms.txt"
        ;;
    tedlium3)
        train_set=train
        valid_set=dev
        test_sets="dev test"
        corpus_opts=""
        ;;
    *)
        echo "$0: knows egs2/wsj and egs2/tedlium3, not ${corpus}: add its sets here" >&2
        exit 2
        ;;
esac

variant_args=$(${python} - "${corpus}" "${recipe}" "${variant#seq2seq_}" << 'END'
import sys

import yaml

corpus, recipe, variant = sys.argv[1:]
with open("conf/cape/variants.yaml", encoding="utf-8-sig") as file:
    table = yaml.safe_load(file)
known = table["recipes"].get(f"{corpus}/{recipe}", [])
if variant not in known:
    sys.exit(f"{variant} is no variant of {corpus}/{recipe}, these are: {', '.join(known) or 'none'}")
options = table["variants"][variant]
print(options if isinstance(options, str) else options[corpus])
END
) || exit 2
# as asr.sh would make it of the names of the config and of asr_args, which are long here
asr_tag=train_asr_${variant}_raw_en_char$(echo "${asr_args}" | sed -e "s/--/_/g" -e "s/[ |=\/]//g")

# --max_wav_duration: asr.sh leaves out training utterances of 20 s and more, unless told otherwise
# shellcheck disable=SC2086
./asr.sh \
    --lang en \
    --ngpu "${ngpu}" \
    --feats_type raw \
    --feats_normalize utterance_mvn \
    --max_wav_duration 60 \
    --token_type char \
    --use_lm false \
    --asr_config "conf/cape/${recipe}.yaml" \
    --asr_args "${variant_args} ${batch_args} ${asr_args}" \
    --asr_tag "${asr_tag}" \
    --inference_config "${inference_config}" \
    --inference_asr_model "${inference_asr_model}" \
    --train_set "${train_set}" \
    --valid_set "${valid_set}" \
    --test_sets "${test_sets}" \
    ${corpus_opts} "$@"
