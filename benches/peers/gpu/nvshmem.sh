#!/bin/sh
# Builds nvshmem_messages.cu against the NVSHMEM that python3 has, and runs it on two GPUs.
#   nvshmem.sh NVCC SIZES FILE
set -u
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
nvcc=$1 sizes=$2 file=$3
root=$(python3 -c 'import nvidia.nvshmem as n; print(list(n.__path__)[0])' 2>/dev/null)
if [ -z "$root" ] || [ ! -f "$root/include/nvshmem.h" ]; then
    echo "NVSHMEM is not there"
    exit 0
fi
library=$(ls "$root"/lib/libnvshmem_host.so* | head -n 1)
"$nvcc" -O2 -std=c++17 -arch=native -rdc=true -I"$root/include" -o nvshmem_messages \
    "$here/nvshmem_messages.cu" "$library" "$root/lib/libnvshmem_device.a" -lcuda || exit 1
export LD_LIBRARY_PATH="$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
rm -f nvshmem.id
./nvshmem_messages "$sizes" "$file" 1 nvshmem.id &
./nvshmem_messages "$sizes" "$file" 0 nvshmem.id || { kill $!; exit 1; }
wait $!
