#!/bin/sh
# compile.sh FOLDER SOURCE OBJECT PTX nvcc [arguments]: compiles a source, and keeps the PTX that the object's machine code is made
# of, for sm_80 if that is one of several: tests execute it (tests/cuda/ptx). FOLDER is for what nvcc leaves behind.
set -eu
folder=$1 source=$2 object=$3 ptx=$4
shift 4
rm -rf "$folder"
mkdir -p "$folder"
"$@" --keep --keep-dir "$folder" -c "$source" -o "$object"
# Named by architecture where there are several.
stem=$(basename "$source" .cu)
set -- "$folder/$stem".compute_80.ptx "$folder/$stem".compute_*.ptx "$folder/$stem.ptx"
while [ ! -e "$1" ]; do shift; done
mv "$1" "$ptx"
rm -rf "$folder"
