// Time of SentencePiece tokenising against the length of a text without line breaks (CASES E2): 'ab ' over and over,
// and one word of 'a'. usage: bench_tokenize MODEL...
#include <fmt/format.h>

#include <chrono>
#include <span>
#include <string>

#include "core/errors.h"
#include "core/tokenizer.h"

namespace {

double seconds_to_encode(const fenwick::Tokenizer& tokenizer, const std::string& text) {
    const auto start = std::chrono::steady_clock::now();
    std::int64_t ids = 0;
    tokenizer.encode(text, "text", [&](std::span<const std::int32_t> part) { ids += std::ssize(part); });
    if (ids == 0) throw fenwick::InternalError("no ids");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string words(std::size_t bytes) {
    std::string text;
    text.reserve(bytes + 3);
    while (text.size() < bytes) text += "ab ";
    return text;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        fmt::print("{:<52} {:>10} {:>10} {:>7} {:>16}\n", "model", "32 MB, s", "64 MB, s", "ratio", "1 MB of 'a', s");
        for (int i = 1; i < argc; ++i) {
            const auto tokenizer = fenwick::make_sentencepiece_tokenizer(argv[i]);
            const double one = seconds_to_encode(*tokenizer, words(32'000'000));
            const double two = seconds_to_encode(*tokenizer, words(64'000'000));
            const double letters = seconds_to_encode(*tokenizer, std::string(1'000'000, 'a'));
            fmt::print("{:<52} {:>10.2f} {:>10.2f} {:>7.2f} {:>16.2f}\n", argv[i], one, two, two / one, letters);
        }
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "bench_tokenize: {}\n", error.what());
        return 70;
    }
}
