// A ping-pong of NVSHMEM between two GPUs: each process puts into the other's symmetric
// memory and sets a flag behind it, on a stream; half of the round trip.
//
//   nvshmem_messages SIZES FILE RANK ID_FILE
//
// Rank 0 writes NVSHMEM's unique identifier to ID_FILE, rank 1 waits for it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <nvshmem.h>
#include <nvshmemx.h>

static const int REPETITIONS = 7;
static const double REPETITION = 0.01;

[[noreturn]] static void die(const char* what) {
    std::fprintf(stderr, "nvshmem_messages: %s\n", what);
    std::exit(1);
}

static double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static void join(int rank, const std::string& file) {
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    if (rank == 0) {
        nvshmemx_get_uniqueid(&id);
        const std::string beside = file + ".new";
        std::FILE* out = std::fopen(beside.c_str(), "wb");
        if (!out || std::fwrite(&id, sizeof id, 1, out) != 1 || std::fclose(out)) die("no file");
        if (std::rename(beside.c_str(), file.c_str())) die("no file");
    } else {
        const double end = now() + 30;
        std::FILE* in = nullptr;
        while (!(in = std::fopen(file.c_str(), "rb"))) {
            if (now() > end) die("rank 0 is silent");
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        if (std::fread(&id, sizeof id, 1, in) != 1) die("half a file");
        std::fclose(in);
    }
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    nvshmemx_set_attr_uniqueid_args(rank, 2, &id, &attributes);
    if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes)) die("it does not start");
}

int main(int argc, char** argv) {
    if (argc != 5) die("usage: nvshmem_messages SIZES FILE RANK ID_FILE");
    const int rank = std::atoi(argv[3]), peer = 1 - rank;
    if (cudaSetDevice(rank) != cudaSuccess) die("no second GPU");
    join(rank, argv[4]);
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    uint64_t* const flag = (uint64_t*)nvshmem_calloc(1, sizeof(uint64_t));
    cudaDeviceProp device;
    cudaGetDeviceProperties(&device, rank);
    const std::string beside = std::string(argv[2]) + ".new";
    std::FILE* const out = rank == 0 ? std::fopen(beside.c_str(), "w") : nullptr;
    if (rank == 0 && !out) die("the file cannot be written");
    if (out) std::fprintf(out, "[");
    uint64_t number = 0;
    bool first = true;
    for (const char* at = argv[1]; *at;) {
        char* end;
        const size_t bytes = std::strtoull(at, &end, 10);
        if (end == at) die("not a list of sizes");
        at = *end == ',' ? end + 1 : end;
        char* const memory = (char*)nvshmem_malloc(2 * bytes);
        cudaMemset(memory, 1 + rank, bytes);
        cudaMemset(memory + bytes, 0, bytes);
        cudaDeviceSynchronize();
        nvshmem_barrier_all();
        const auto send = [&] {
            nvshmemx_putmem_signal_nbi_on_stream(memory + bytes, memory, bytes, flag, number,
                                                 NVSHMEM_SIGNAL_SET, peer, stream);
        };
        const auto receive = [&] {
            nvshmemx_signal_wait_until_on_stream(flag, NVSHMEM_CMP_GE, number, stream);
        };
        const auto trips = [&](long n) {
            const double begin = now();
            for (long i = 0; i < n; i++) {
                number++;
                if (rank == 0) { send(); receive(); } else { receive(); send(); }
                cudaStreamSynchronize(stream);
            }
            return (now() - begin) / n / 2;
        };
        trips(2);
        // Both take the same number: that of the slower size rule.
        const long n = std::max(1L, (long)(REPETITION / (2 * (5e-6 + bytes / 100e9))));
        std::vector<double> times;
        for (int i = 0; i < REPETITIONS; i++) times.push_back(1e6 * trips(n));
        std::sort(times.begin(), times.end());
        char last = 0;
        cudaMemcpy(&last, memory + 2 * bytes - 1, 1, cudaMemcpyDeviceToHost);
        if (last != 1 + peer) die("wrong bytes arrived");
        if (out) {
            std::fprintf(out,
                         "%s\n{\"bench\": \"latency\", \"layout\": \"contiguous\", \"memory\":"
                         " \"device\", \"transport\": \"%s\", \"threads\": 1, \"ranks\": 2,"
                         " \"bytes\": %zu, \"unit\": \"us\", \"value\": %.4f, \"spread\": [%.4f,"
                         " %.4f], \"floor\": null, \"library\": \"nvshmem\"}",
                         first ? "" : ",", device.name, bytes, times[REPETITIONS / 2], times[0],
                         times[REPETITIONS - 1]);
            first = false;
        }
        nvshmem_barrier_all();
        nvshmem_free(memory);
    }
    if (out) {
        std::fprintf(out, "\n]\n");
        if (std::fclose(out) || std::rename(beside.c_str(), argv[2])) die("no file");
    }
    nvshmem_finalize();
    return 0;
}
