#include "parallel/world_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fenwick {

void Step::set_part(const std::string& text) {
    part.fill('\0');
    std::copy_n(text.begin(), std::min(text.size(), part.size() - 1), part.begin());
}

std::string step_text(const Step& step) {
    switch (step.activity) {
        case Activity::kStarting:
            return "starting";
        case Activity::kWaiting:
            return "between passes";
        case Activity::kRestoring:
            return "restoring a saved state";
        case Activity::kEnding:
            return "ending";
        case Activity::kSaving:
            return fmt::format("saving after training step {}", step.first_token);
        case Activity::kPass:
        case Activity::kTraining:
            break;
    }
    std::string text = step.activity == Activity::kTraining ? fmt::format("training step {}", step.first_token)
                                                            : fmt::format("the pass at token {}", step.first_token);
    if (step.layer >= 0) text = fmt::format("layer {} of {}", step.layer, text);
    if (step.part.front() != '\0') text += fmt::format(", {}", step.part.data());
    return text;
}

void WorldStatus::set_step(const Step& step) {
    const std::lock_guard<std::mutex> lock(mutex_);
    step_ = step;
}

Step WorldStatus::step() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return step_;
}

void WorldStatus::set_place(std::int32_t layer, const std::string& part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    step_.layer = layer;
    step_.set_part(part);
}

void WorldStatus::set_resumable(bool resumable) {
    const std::lock_guard<std::mutex> lock(mutex_);
    resumable_ = resumable;
}

void WorldStatus::set_resumable_look(std::function<bool()> look) {
    const std::lock_guard<std::mutex> lock(mutex_);
    look_ = std::move(look);
}

bool WorldStatus::resumable() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return resumable_ || (look_ && look_());
}

}  // namespace fenwick
