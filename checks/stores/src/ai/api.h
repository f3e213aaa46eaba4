/* The functions of the server that the module uses, declared here as they are
 * documented for modules of Redis 6.2 and later, Valkey and KeyDB: no header
 * of a server is needed.  The server hands them out by name at load time. */
#ifndef API_H
#define API_H
#include <stddef.h>
#include <stdint.h>

typedef struct server_context Context;      /* these are opaque */
typedef struct server_string String;
typedef struct server_key Key;
typedef struct server_type Type;
typedef struct server_io Io;
typedef struct server_blocked Blocked;

typedef int Command(Context *, String **, int);

enum { GOOD = 0, BAD = 1, API_VERSION = 1 };
enum { READ = 1, WRITE = 2 };
enum { KEY_EMPTY = 0 };

/* What the server does with values of a type; version 3 has seven more. */
typedef struct {
    uint64_t version;
    void *(*load)(Io *, int);
    void (*save)(Io *, void *);
    void (*rewrite)(Io *, String *, void *);
    size_t (*size)(const void *);
    void (*digest)(void *, void *);
    void (*free)(void *);
    void *unused[7];
} Methods;

#define API(X) \
    X(void *, Alloc, (size_t)) \
    X(void *, Calloc, (size_t, size_t)) \
    X(void, Free, (void *)) \
    X(void, SetModuleAttribs, (Context *, const char *, int, int)) \
    X(int, CreateCommand, (Context *, const char *, Command *, \
                           const char *, int, int, int)) \
    X(Type *, CreateDataType, (Context *, const char *, int, Methods *)) \
    X(void, Log, (Context *, const char *, const char *, ...)) \
    X(int, WrongArity, (Context *)) \
    X(int, ReplyWithError, (Context *, const char *)) \
    X(int, ReplyWithSimpleString, (Context *, const char *)) \
    X(int, ReplyWithArray, (Context *, long)) \
    X(int, ReplyWithLongLong, (Context *, long long)) \
    X(int, ReplyWithString, (Context *, String *)) \
    X(int, ReplyWithStringBuffer, (Context *, const char *, size_t)) \
    X(const char *, StringPtrLen, (const String *, size_t *)) \
    X(int, StringToLongLong, (const String *, long long *)) \
    X(String *, HoldString, (Context *, String *)) \
    X(void, FreeString, (Context *, String *)) \
    X(void *, OpenKey, (Context *, String *, int)) \
    X(void, CloseKey, (Key *)) \
    X(int, KeyType, (Key *)) \
    X(Type *, ModuleTypeGetType, (Key *)) \
    X(void *, ModuleTypeGetValue, (Key *)) \
    X(int, ModuleTypeSetValue, (Key *, Type *, void *)) \
    X(int, ModuleTypeReplaceValue, (Key *, Type *, void *, void **)) \
    X(Blocked *, BlockClient, (Context *, Command *, Command *, \
                               void (*)(Context *, void *), long long)) \
    X(int, UnblockClient, (Blocked *, void *)) \
    X(void *, GetBlockedClientPrivateData, (Context *))

#define DECLARED(result, name, arguments) \
    extern result (*RM_##name) arguments;
API(DECLARED)

#endif
