#!/usr/bin/env bash
# WMT'14 English → German or French for fairseq, by the steps of ADMIN's recipe (Transformer-Clinic,
# pre-process/wmt14en-{de,fr}.sh, from fairseq's examples/translation), with sacremoses and subword-nmt.
#
#     bash prepare_wmt14.sh de|fr OUT
#
# OUT gets raw/ and tokenised/ text, codes (BPE), bpe/, and data-bin/ for fairseq-train. The files of
# tokenised/ are before cleaning; raw/ holds the test set, and for German the validation set.
#
#     ORIG=folder   of the downloads (default: OUT/orig); archives that are there are not fetched
#     JOBS=n        processes (default: all cores)
#     MERGES=n      of BPE (default: 32764 for German, 40000 for French, as in the recipe)
set -euo pipefail
export LC_ALL=C.UTF-8

fail() {
    echo "prepare_wmt14.sh: $*" >&2
    exit 1
}

[ $# -eq 2 ] || fail "usage: prepare_wmt14.sh de|fr OUT"
target=$1
out=$2
case $target in
de)
    merges=${MERGES:-32764}
    urls="https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz
        https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz
        https://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz
        https://data.statmt.org/wmt17/translation-task/dev.tgz
        https://www.statmt.org/wmt14/test-full.tgz"
    corpora="training/europarl-v7.de-en commoncrawl.de-en training/news-commentary-v12.de-en"
    ;;
fr)
    merges=${MERGES:-40000}
    urls="https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz
        https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz
        https://www.statmt.org/wmt13/training-parallel-un.tgz
        https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz
        https://www.statmt.org/wmt10/training-giga-fren.tar
        https://www.statmt.org/wmt14/test-full.tgz"
    corpora="training/europarl-v7.fr-en commoncrawl.fr-en un/undoc.2000.fr-en
        training/news-commentary-v9.fr-en giga-fren.release2.fixed"
    ;;
*) fail "the target is de or fr, got '$target'" ;;
esac
[[ $merges =~ ^[1-9][0-9]*$ ]] || fail "MERGES must be a whole number ≥ 1, got '$merges'"
jobs=${JOBS:-$(nproc)}
[[ $jobs =~ ^[1-9][0-9]*$ ]] || fail "JOBS must be a whole number ≥ 1, got '$jobs'"
for program in sacremoses subword-nmt fairseq-preprocess; do
    command -v $program >/dev/null || fail "no $program: pip install 'cape-plugins[fairseq]'"
done
[ ! -e "$out/data-bin" ] || fail "$out/data-bin exists: name another folder"
orig=${ORIG:-$out/orig}
text=$out/text # unpacked
mkdir -p "$orig" "$text" "$out"/{raw,tokenised,bpe}

# --- archives ---------------------------------------------------------------------------------
for url in $urls; do
    archive=$orig/${url##*/}
    if [ ! -f "$archive" ]; then
        curl --fail --location --retry 3 --output "$archive.part" "$url" || fail "no $url"
        mv "$archive.part" "$archive"
    fi
    [ -f "$text/${url##*/}.unpacked" ] || tar -xf "$archive" -C "$text"
    touch "$text/${url##*/}.unpacked"
done
for packed in "$text"/giga-fren.release2.fixed.*.gz; do
    [ ! -f "$packed" ] || gunzip -f "$packed"
done

# --- sacremoses -------------------------------------------------------------------------------
# tokenise LANGUAGE OUT [normalize -c]: lines from stdin, in chunks side by side. A stray carriage
# return would be read as the end of a line.
tokenise() {
    local language=$1 to=$2
    shift 2
    if [ -f "$to" ]; then
        cat >/dev/null
        return
    fi
    rm -rf "$to.chunks"
    mkdir "$to.chunks"
    tr -d '\r' | split -a 5 -l 200000 - "$to.chunks/"
    find "$to.chunks" -type f -print0 | xargs -0 -P "$jobs" -I{} sh -c \
        'chunk=$1; shift; sacremoses -q -j 1 -l "$@" tokenize -a <"$chunk" >"$chunk.tok"' \
        sh {} "$language" "$@"
    cat "$to.chunks"/*.tok >"$to.part"
    mv "$to.part" "$to"
    rm -r "$to.chunks"
}

tok=$out/tokenised
for l in en "$target"; do
    for corpus in $corpora; do
        [ -f "$text/$corpus.$l" ] || fail "the archives hold no $corpus.$l"
        cat "$text/$corpus.$l"
    done | tokenise "$l" "$tok/all.$l" normalize -c

    [ "$l" = en ] && part=src || part=ref
    sgm=$text/test-full/newstest2014-${target}en-$part.$l.sgm
    [ -f "$sgm" ] || fail "the archives hold no ${sgm##*/}"
    grep '<seg id' "$sgm" |
        sed -e 's/^.*<seg id="[0-9]*">\s*//' -e 's/\s*<\/seg>.*$//' \
            -e 's/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&amp;/\&/g' >"$out/raw/test.$l"
    sed -e "s/’/'/g" "$out/raw/test.$l" | tokenise "$l" "$tok/test.$l" # without normaliser there
done

# --- training and validation --------------------------------------------------------------------
same_length() {
    [ "$(wc -l <"$1.en")" -eq "$(wc -l <"$1.$target")" ] ||
        fail "$1.en and $1.$target have different numbers of lines"
}

# clean FROM TO MAX RATIO: pairs of 1 to MAX tokens whose lengths differ by RATIO at most, as Moses'
# clean-corpus-n.perl
clean() {
    same_length "$1"
    : >"$2.en"
    : >"$2.$target"
    paste "$1.en" "$1.$target" | awk -F '\t' -v max="$3" -v ratio="$4" \
        -v a="$2.en" -v b="$2.$target" '{
            n = split($1, x, " "); m = split($2, y, " ")
            if (NF == 2 && n && m && n <= max && m <= max && n <= ratio * m && m <= ratio * n) {
                print $1 > a; print $2 > b
            }
        }'
    echo "$2: $(wc -l <"$2.en") of $(wc -l <"$1.en") pairs"
}

same_length "$tok/all"
if [ "$target" = de ]; then
    clean "$tok/all" "$tok/train" 80 9
    for l in en de; do
        tr -d '\r' <"$text/dev/newstest2013.$l" >"$out/raw/valid.$l"
        tokenise "$l" "$tok/valid.$l" normalize -c <"$out/raw/valid.$l"
    done
else
    for l in en fr; do
        awk 'NR % 1333 == 0' "$tok/all.$l" >"$tok/valid.$l"
        awk 'NR % 1333 != 0' "$tok/all.$l" >"$tok/train.$l"
    done
fi

# --- BPE ----------------------------------------------------------------------------------------
if [ ! -f "$out/codes" ]; then
    cat "$tok/train.en" "$tok/train.$target" >"$out/both"
    subword-nmt learn-bpe -s "$merges" --num-workers "$jobs" -i "$out/both" -o "$out/codes.part"
    mv "$out/codes.part" "$out/codes"
    rm "$out/both"
fi
bpe=$out/bpe
for split in train valid test; do
    for l in en "$target"; do
        subword-nmt apply-bpe -c "$out/codes" --num-workers "$jobs" \
            -i "$tok/$split.$l" -o "$bpe/$split.$l"
    done
done
if [ "$target" = fr ]; then
    for split in train valid; do
        for l in en fr; do mv "$bpe/$split.$l" "$bpe/$split.all.$l"; done
        clean "$bpe/$split.all" "$bpe/$split" 250 1.5
        rm "$bpe/$split".all.*
    done
fi

fairseq-preprocess --source-lang en --target-lang "$target" --joined-dictionary \
    --trainpref "$bpe/train" --validpref "$bpe/valid" --testpref "$bpe/test" \
    --destdir "$out/data-bin.part" --workers "$jobs"
mv "$out/data-bin.part" "$out/data-bin"
