#include "coordinator/tokenize.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <utility>

#include "coordinator/progress.h"
#include "coordinator/stop_signal.h"
#include "core/documents.h"
#include "core/token_file.h"
#include "core/tokenizer.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kStretch = std::int64_t{1} << 18;  // tokens

bool needs_tokenizer(const DocumentRef& document) {
    return document.error.empty() &&
           (document.content == DocumentContent::kText || document.content == DocumentContent::kJsonText);
}

class TokenizeRun {
public:
    explicit TokenizeRun(const TokenizeOptions& options)
        : options_(options),
          documents_(list_documents(options.inputs)),
          tokenizer_(options.tokenizer == "bytes" ? make_byte_tokenizer()
                                                  : make_sentencepiece_tokenizer(options.tokenizer)),
          vocab_size_(options.vocab_size > 0 ? options.vocab_size : tokenizer_->vocab_size()) {
        if (fs::exists(options.output) && !options.overwrite) {
            throw UsageError(
                fmt::format("{} is there already; choose another file or --overwrite", options.output.string()));
        }
        // Ready ids alone may have any vocabulary.
        const bool has_text = std::any_of(documents_.begin(), documents_.end(), needs_tokenizer);
        if (has_text && vocab_size_ < tokenizer_->vocab_size()) {
            throw UsageError(fmt::format("--vocab: expected at least the {} ids of the tokenizer, found {}",
                                         tokenizer_->vocab_size(), vocab_size_));
        }
        if (options.eos_id < -1 || options.eos_id >= vocab_size_) {
            throw UsageError(
                fmt::format("--eos: expected an id in [0, {}) (see --vocab), found {}", vocab_size_, options.eos_id));
        }
        report_.vocab_size = vocab_size_;
        report_.tokenizer = has_text ? tokenizer_->identity() : "";
    }

    TokenizeReport run() {
        const auto start = std::chrono::steady_clock::now();
        report_.masked = std::any_of(documents_.begin(), documents_.end(),
                                     [](const DocumentRef& document) { return document.has_targets; });
        TokenFileWriter writer(
            options_.output, {.vocab_size = vocab_size_, .tokenizer = report_.tokenizer, .with_mask = report_.masked});
        Progress progress(Progress::choose(options_.silent), std::ssize(documents_));
        for (std::int64_t i = 0; i < std::ssize(documents_); ++i) {
            const DocumentRef& document = documents_[static_cast<std::size_t>(i)];
            const std::unique_ptr<TokenReader> reader = open(document, progress);
            if (reader == nullptr) continue;
            progress.begin(i, document.custom_id, reader->size(), 0);
            copy(document, *reader, writer, progress);
        }
        progress.end();
        report_.documents = writer.documents();
        report_.tokens = writer.tokens();
        report_.hash = writer.commit();
        const TokenFile written = TokenFile::open(options_.output);
        report_.text_bytes = written.text_bytes();
        report_.id_bytes = written.id_bytes();
        report_.file_bytes = static_cast<std::int64_t>(fs::file_size(options_.output));
        report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        return report_;
    }

private:
    /// Null: the document is bad, which is said and noted. One that opens is good: what fails later is a file that
    /// changes under our hands, and ends the run.
    std::unique_ptr<TokenReader> open(const DocumentRef& document, Progress& progress) {
        try {
            return open_document(
                document,
                {.tokenizer = tokenizer_.get(),
                 .vocab_size = vocab_size_,
                 .work_folder = options_.output.has_parent_path() ? options_.output.parent_path() : fs::path(".")});
        } catch (const DataError& error) {
            progress.end();
            spdlog::warn("{}: {}", document.custom_id, error.what());
            report_.failures.push_back({document.custom_id, error.what()});
            return nullptr;
        }
    }

    void copy(const DocumentRef& document, const TokenReader& reader, TokenFileWriter& writer, Progress& progress) {
        // Where one document names its targets, of the others every token is one.
        std::vector<bool> targets;
        if (document.has_targets) targets = read_targets(document);
        std::vector<bool> mask;
        for (std::int64_t first = 0; first < reader.size(); first += kStretch) {
            if (const char* signal = stop_requested(); signal != nullptr) {
                progress.end();
                throw InterruptedError(
                    fmt::format("{}: stopped; nothing was written, run it again from the start", signal));
            }
            ids_.resize(static_cast<std::size_t>(std::min(kStretch, reader.size() - first)));
            reader.read(first, ids_);
            if (document.has_targets) {
                const auto from = targets.begin() + first;
                mask.assign(from, from + std::ssize(ids_));
            } else if (report_.masked) {
                mask.assign(ids_.size(), true);
            }
            writer.append(ids_, mask);
            progress.advance(first + std::ssize(ids_));
        }
        if (options_.eos_id >= 0) {
            const auto eos = static_cast<std::int32_t>(options_.eos_id);
            if (report_.masked) mask.assign(1, !document.has_targets);
            writer.append({&eos, 1}, mask);
        }
        writer.end_document(reader.text_bytes());
    }

    const TokenizeOptions& options_;
    std::vector<DocumentRef> documents_;
    std::unique_ptr<Tokenizer> tokenizer_;
    std::int64_t vocab_size_;
    TokenizeReport report_;
    std::vector<std::int32_t> ids_;
};

}  // namespace

TokenizeReport tokenize_documents(const TokenizeOptions& options) {
    return TokenizeRun(options).run();
}

}  // namespace fenwick
