// The store's two connections to its file: one that writes, under a lock, and one that reads beside it.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>
#include <SQLiteCpp/VariadicBind.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/store/store.h"
#include "core/files.h"

namespace fenwick {

/// The rows of a statement, while they are read. Lets the statement go when it goes.
class Rows {
public:
    explicit Rows(SQLite::Statement& statement) : statement_(statement) {}
    Rows(const Rows&) = delete;
    Rows& operator=(const Rows&) = delete;
    ~Rows() { statement_.tryReset(); }
    [[nodiscard]] bool next() { return statement_.executeStep(); }
    [[nodiscard]] std::int64_t integer(int column) const { return statement_.getColumn(column).getInt64(); }
    [[nodiscard]] double real(int column) const { return statement_.getColumn(column).getDouble(); }
    /// Text or blob.
    [[nodiscard]] std::string text(int column) const { return statement_.getColumn(column).getString(); }
    [[nodiscard]] bool is_null(int column) const { return statement_.getColumn(column).isNull(); }
    [[nodiscard]] SQLite::Statement& statement() { return statement_; }

private:
    SQLite::Statement& statement_;
};

/// One connection with its prepared statements.
class StoreConnection {
public:
    StoreConnection(const std::filesystem::path& file, int flags);

    /// The statement with `values` bound in order; one reader of the same text at a time.
    template <class... Values>
    Rows query(const std::string& sql, const Values&... values) {
        SQLite::Statement& statement = prepared(sql);
        if constexpr (sizeof...(values) > 0) SQLite::bind(statement, values...);
        return Rows(statement);
    }
    /// Runs a statement that gives no rows; returns how many it changed.
    template <class... Values>
    std::int64_t run(const std::string& sql, const Values&... values) {
        return query(sql, values...).statement().exec();
    }
    SQLite::Database& raw() { return database_; }

private:
    SQLite::Statement& prepared(const std::string& sql);
    SQLite::Database database_;
    std::map<std::string, SQLite::Statement> statements_;
};

class Store::Database {
public:
    explicit Database(const std::filesystem::path& file);

    /// `change` as one transaction; what it `touch`es is told to the observer afterwards.
    template <class Change>
    auto write(Change&& change) {
        std::vector<std::pair<std::string, std::int64_t>> touched;
        if constexpr (std::is_void_v<decltype(change(writer_))>) {
            transact([&] { change(writer_); }, touched);
            tell(touched);
        } else {
            decltype(change(writer_)) result{};
            transact([&] { result = change(writer_); }, touched);
            tell(touched);
            return result;
        }
    }

    template <class Look>
    auto read(Look&& look) {
        const std::lock_guard lock(read_mutex_);
        try {
            return look(reader_);
        } catch (const SQLite::Exception& error) {
            rethrow(error);
        }
    }

    /// Within `write`: the job's version grows.
    void touch(const std::string& job_id);
    void observe(std::function<void(const std::string&, std::int64_t)> observer);

private:
    void transact(const std::function<void()>& change, std::vector<std::pair<std::string, std::int64_t>>& touched);
    void tell(const std::vector<std::pair<std::string, std::int64_t>>& touched);
    [[noreturn]] void rethrow(const SQLite::Exception& error) const;

    std::filesystem::path file_;
    FileDescriptor lock_;
    std::mutex write_mutex_;
    std::mutex read_mutex_;
    StoreConnection writer_;
    StoreConnection reader_;
    std::vector<std::pair<std::string, std::int64_t>> touched_;
    std::mutex observer_mutex_;
    std::function<void(const std::string&, std::int64_t)> observer_;
};

// ---- rows as the IDL and the coordinator know them

/// Columns of `kJobColumns`.
extern const char* const kJobColumns;
[[nodiscard]] idl::Job job_of(StoreConnection& db, const Rows& row);
/// Throws NOT_FOUND.
[[nodiscard]] idl::Job read_job(StoreConnection& db, const std::string& id);

extern const char* const kDocumentColumns;
[[nodiscard]] StoredDocument document_of(const Rows& row);

/// Within a transaction: IN_PROGRESS with nothing queued or running becomes FINALIZING.
void finalize_if_done(StoreConnection& db, const std::string& job_id);
/// Adds to the usage of a job and of its client.
void add_usage(StoreConnection& db, const std::string& job_id, const WorkDone& work, std::int64_t tokens,
               std::int64_t scored_tokens);
void add_log(StoreConnection& db, const LogLine& line);
/// Ends what is queued or running of the job; returns the leases that ended. The job takes the state CANCELLING, and
/// `target` follows.
[[nodiscard]] std::vector<LeaseKey> end_documents(StoreConnection& db, const std::string& job_id,
                                                  idl::JobState::type target);
/// An id that nothing else has: prefix and 16 hexadecimal digits.
[[nodiscard]] std::string new_id(const std::string& prefix);
/// Pages are numbered from where they start. Throws INVALID_ARGUMENT for anything but what a page said.
[[nodiscard]] std::int64_t parse_page_token(const std::string& token);
[[nodiscard]] std::int64_t clamp_page(std::int32_t size);
/// "(1, 2, 3)" for IN; all of 1..`last` when `states` is empty.
template <class State>
[[nodiscard]] std::string state_list(const std::vector<State>& states, int last) {
    std::string text;
    if (states.empty()) {
        for (int state = 1; state <= last; ++state) text += (text.empty() ? "" : ", ") + std::to_string(state);
    } else {
        for (const State state : states) text += (text.empty() ? "" : ", ") + std::to_string(static_cast<int>(state));
    }
    return "(" + text + ")";
}

}  // namespace fenwick
