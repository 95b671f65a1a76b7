// Outputs of the linear read-out: a warpgroup walks a block's chunks with 64 columns of the one state in its registers.
#include "core/cuda/check.h"
#include "kernels/cuda/diagonal_step.cuh"

namespace fenwick::cuda::diagonal {
namespace {

struct Arguments {
    const bf16* v;
    std::int64_t v_stride, rows, first_block;
    int heads, value_dim, tiles;
    Prepared prepared;
    const float* entering;
    bf16* out;
};

template <int kDk>
struct Stage {
    alignas(1024) unsigned char queries[kDk / 64 * kPanelBytes];
    alignas(1024) unsigned char keys[kDk / 64 * kPanelBytes];
    alignas(1024) unsigned char scores[kPanelBytes];
    alignas(1024) unsigned char values[kPanelBytes];  // then the outputs
};

template <int kDk>
struct Shared {
    Stage<kDk> stages[2];
    float decays[2][kDk];
};

template <int kDk>
__global__ void __launch_bounds__(kWalkThreads, 2) read(const Arguments args) {
    extern __shared__ __align__(1024) unsigned char raw[];
    Shared<kDk>& s = *reinterpret_cast<Shared<kDk>*>(raw);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    std::int64_t work = blockIdx.x;
    const int tile = static_cast<int>(work % args.tiles);
    work /= args.tiles;
    const int head = static_cast<int>(work % args.heads);
    const std::int64_t block = work / args.heads;
    const int dv = args.value_dim;
    const int columns = dv - 64 * tile;
    const std::int64_t left = args.rows - block * kBlockTokens;
    const int chunks = static_cast<int>((left < kBlockTokens ? left + kC - 1 : kBlockTokens) / kC);

    const auto load = [&](int step) {
        if (step < chunks) {
            const std::int64_t chunk = block * kChunksPerBlock + step;
            const std::int64_t at = chunk * args.heads + head;
            Stage<kDk>& stage = s.stages[step % 2];
            load_rows<kDk>(stage.queries, args.prepared.queries + at * kC * kDk);
            load_tile<kC * kC * 2>(stage.scores, args.prepared.scores + at * kC * kC);
            load_rows<kDk>(stage.keys, args.prepared.keys + at * kC * kDk);
            load_tile<kDk * 4>(s.decays[step % 2], args.prepared.decays + at * kDk);
            matrix::load_panels<8, kWalkThreads>(matrix::shared_address(stage.values),
                                                 args.v + chunk * kC * args.v_stride + head * dv + 64 * tile,
                                                 args.v_stride, rows_from(args.rows, chunk * kC), columns);
        }
        matrix::copies_commit();
    };
    Columns<kDk> x;
    load(0);
    if (args.first_block + block == 0) {
        matrix::clear(x);
    } else {
        matrix::load_columns<kDk>(x, args.entering + (block * args.heads + head) * kDk * dv, dv, 64 * tile + 16 * warp,
                                  dv);
    }
    for (int step = 0; step < chunks; ++step) {
        load(step + 1);
        matrix::copies_wait<1>();
        matrix::publish_shared();
        __syncthreads();
        Stage<kDk>& stage = s.stages[step % 2];
        float o[32];
        std::uint32_t values[4][4];
        matrix::read_state<kDk>(x, matrix::shared_address(stage.queries), o);
        load_values(values, stage.values, warp);
        matrix::products_begin(o);
        matrix::add_triangle(values, matrix::shared_address(stage.scores), o);
        matrix::products_end(o);
        decay_state<kDk>(x, s.decays[step % 2]);
        matrix::write_state<kDk>(x, 1.0F, values, matrix::shared_address(stage.keys));
        const std::int64_t row = (block * kChunksPerBlock + step) * kC;
        store_outputs(o, stage.values, warp, args.out + (row * args.heads + head) * dv + 64 * tile,
                      static_cast<std::int64_t>(args.heads) * dv, rows_from(args.rows, row), columns);
        __syncthreads();
    }
}

template <int kDk>
void launch(const Arguments& args, std::int64_t ctas, cudaStream_t stream) {
    constexpr int kBytes = static_cast<int>(sizeof(Shared<kDk>));
    FENWICK_CUDA_CHECK(cudaFuncSetAttribute(read<kDk>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    read<kDk><<<static_cast<unsigned>(ctas), kWalkThreads, kBytes, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_linear(const Work& work, void* out, cudaStream_t stream) {
    const MixerShape& shape = work.shape;
    const MixerInputs& in = work.inputs;
    const Arguments args{
        static_cast<const bf16*>(in.v),    in.v_stride, in.rows,       work.first_block, static_cast<int>(shape.heads),
        static_cast<int>(shape.value_dim), work.tiles,  work.prepared, work.entering,    static_cast<bf16*>(out)};
    const std::int64_t ctas = work.blocks * shape.heads * work.tiles;
    shape.key_dim == 128 ? launch<128>(args, ctas, stream) : launch<64>(args, ctas, stream);
}

}  // namespace fenwick::cuda::diagonal
