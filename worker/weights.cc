#include "worker/weights.h"

#include <algorithm>

namespace fenwick {

Linear stack_rows(std::initializer_list<const Linear*> parts) {
    Linear all;
    for (const Linear* part : parts) {
        all.outputs += part->outputs;
        all.inputs = part->inputs;
    }
    all.weight = Buffer<float>(all.outputs * all.inputs);
    float* to = all.weight.data();
    for (const Linear* part : parts) to = std::copy(part->weight.begin(), part->weight.end(), to);
    return all;
}

}  // namespace fenwick
