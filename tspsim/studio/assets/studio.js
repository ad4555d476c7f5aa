/* Small glue: waits until typing rests, dims what is no longer the answer, copies, says when the tab closes. */
(function () {
  const WAIT_MS = 20, PATIENCE_MS = 20000, FORGET_MS = 1500, RESTED_MS = 250, FORM_MS = 250;
  let waiting = null, number = 0, busy = 0, begun = false, turning = null, same = false, changed = 0, settled = 0;
  const none = () => window.dash_clientside.no_update;
  const answer = () => document.getElementById("answer");

  /* The page sends events to the server one by one; while the server handles one, the next wait here. */
  const queue = [];
  /* Typed or chosen values that the server does not have yet; a form that is drawn anew meanwhile may show an older text. */
  const typing = new Map();
  function push(event) {
    event.at = Date.now();
    if (!["go", "mend", "find", "file"].includes(event.kind) && answer()) answer().setAttribute("data-changing", "");
    const last = queue[queue.length - 1];
    if (last && last.kind === event.kind && event.kind === "field") Object.assign(last.values, event.values);
    else if (last && last.kind === event.kind && event.kind === "typed") last.value = event.value;
    else queue.push(event);
    next();
    draw(FORM_MS);
  }
  function next() {
    if (!queue.length || Date.now() - busy < PATIENCE_MS) return;
    busy = Date.now();
    typing.forEach((typed, path) => busy - typed.at > PATIENCE_MS && typing.delete(path));
    turning = Object.assign(queue.shift(), { n: ++number });
    window.dash_clientside.set_props("happened", { data: turning });
    setTimeout(next, PATIENCE_MS + 100);
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    studio: {
      happen: function (hash) {
        const question = arguments[arguments.length - 1];
        if (!begun) {
          begun = true;
          push({ kind: "link", hash: hash || location.hash });
          return none();
        }
        const inputs = window.dash_clientside.callback_context.triggered;
        const fields = {};
        for (const input of inputs) {
          const at = input.prop_id.lastIndexOf("."), name = input.prop_id.slice(0, at);
          const id = name.startsWith("{") ? JSON.parse(name) : { type: name };
          if (id.type === "field") fields[id.path] = input.value;
          else if (question && input.value === { link: question.hash, file: question.file }[id.type]) continue;
          else if (id.type === "link") push({ kind: "link", hash: input.value });
          else if (id.type === "slid") input.value && push(Object.assign({ kind: "slid" }, input.value));
          else if (input.value) push(Object.assign({}, id, { kind: id.type, value: input.value }));
        }
        /* The form of the other fields has just been drawn. */
        const mine = Object.keys(fields).filter((path) => typing.has(path));
        const values = Object.fromEntries(mine.map((path) => [path, typing.get(path).text]));
        mine.forEach((path) => typing.delete(path));
        if (mine.length) push({ kind: "field", values: values });
        return none();
      },
      turned: function (told, question) {
        busy = 0;
        asked = question;
        if (told && told.asks) same = false;
        if (turning && ["field", "typed"].includes(turning.kind)) settled = Math.max(settled, turning.at);
        next();
        settle();
        draw(same ? 0 : FORM_MS);
        return none();
      },
      fresh: function (question, answered) {
        same = Boolean(question && answered && question.n === answered.n);
        asked = question;
        settle();
        draw(same ? 0 : FORM_MS);
        document.querySelectorAll(".row").forEach((row) => {
          const path = (answered && answered.n === question.n && answered.path) || "";
          const here = row.dataset.path;
          row.classList.toggle("wrong", Boolean(here && path && (path === here || path.startsWith(here + "/"))));
        });
        rests();
        return same && !answered.refused ? "answer" : "answer stale";
      },
      rested: function (of) {
        resting = of;
        rests();
        return none();
      },
      drawn: function () {
        drawing = 0;
        draw(0);
        return none();
      },
    },
  });

  /* What an answer rests on comes a moment after it. */
  let resting = null;
  function rests() {
    document.getElementById("about").classList.toggle("stale", Boolean(asked && resting !== asked.n));
  }
  /* The form is drawn anew behind the answer, or before it where that takes long; and once more where the question
     changed while it was drawn. */
  let drawing = 0, form = null, missed = false, later = null;
  function draw(wait) {
    clearTimeout(later);
    if (!asked) return;
    const underWay = Date.now() - drawing < PATIENCE_MS;
    if (underWay) missed = missed || asked.n !== form.n || asked.form !== form.form;
    const needed = missed || !form || form.form !== asked.form;
    document.getElementById("form").setAttribute("aria-busy", String(Boolean(needed || underWay || busy || queue.length)));
    if (needed && !underWay)
      later = setTimeout(() => {
        drawing = Date.now();
        missed = false;
        form = asked;
        window.dash_clientside.set_props("form-asked", { data: drawing });
      }, wait);
  }
  /* What somebody typed is in the answer once its turn is over and answered; or nothing came of it. */
  function settle() {
    const over = settled >= changed || Date.now() - changed > FORGET_MS;
    if (same && over && !busy && !queue.length && answer()) answer().removeAttribute("data-changing");
  }
  function typed(text) {
    clearTimeout(waiting);
    if (!asked || (text === asked.text && !busy && !queue.length)) return;
    waiting = setTimeout(() => push({ kind: "typed", value: text }), WAIT_MS);
  }

  /* Whoever changes the question waits for its answer alone: it begins before the page's own parts hear of the change. */
  let asked = null;
  function begin(more) {
    if (!asked || !same || queue.length || Date.now() - changed < RESTED_MS) return;
    const said = Object.assign({ text: asked.text, file: asked.file }, more);
    const headers = { "Content-Type": "application/json" };
    const tab = document.querySelector("[data-tab]").dataset.tab;
    fetch("/begin/" + tab, { method: "POST", headers: headers, body: JSON.stringify(said) }).catch(() => {});
  }
  document.addEventListener("input", (event) => {
    const from = event.target.closest && event.target.closest(".ask, .editor");
    if (!from || event.target.id === "find" || !answer()) return;
    if (event.target.id === "yaml") {
      begin({ text: event.target.value });
      typed(event.target.value);
    } else if (event.target.id.includes('"field"'))
      begin({ values: { [JSON.parse(event.target.id).path]: event.target.value } });
    changed = Date.now();
    if (event.target.id.includes('"field"')) {
      const { value, selectionStart } = event.target;
      typing.set(JSON.parse(event.target.id).path, { text: value, caret: selectionStart, at: changed });
    }
    answer().setAttribute("data-changing", "");
    setTimeout(settle, FORGET_MS + 50);
  }, true);
  /* What is typed into a field that offers entries replaces the one that it names. */
  let held = "";
  document.addEventListener("pointerdown", () => (held = ""));
  document.addEventListener("focusin", (event) => {
    held = event.target.closest("#form") ? event.target.id : "";
    if (event.target.matches("input[list]")) event.target.select();
  });
  document.addEventListener("click", (event) => {
    const name = event.target.dataset && event.target.dataset.copy;
    if (!name) return;
    navigator.clipboard.writeText(document.getElementById(name).textContent).then(() => {
      event.target.textContent = "Copied";
      setTimeout(() => (event.target.textContent = "Copy"), 1500);
    });
  });
  window.addEventListener("pagehide", () => {
    const page = document.querySelector("[data-tab]");
    if (page) navigator.sendBeacon("/leave/" + page.dataset.tab);
  });
  /* Who is in a field of a form that is drawn anew stays in it, with all that was typed there. */
  function hold() {
    const field = held && document.activeElement === document.body && document.getElementById(held);
    if (!field) return;
    const typed = held.includes('"field"') && typing.get(JSON.parse(held).path);
    field.focus();
    if (typed && typed.text !== field.value) {
      Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), "value").set.call(field, typed.text);
      field.dispatchEvent(new Event("input", { bubbles: true }));
    }
    if (field.setSelectionRange) {
      const caret = typed ? typed.caret : field.value.length;
      field.setSelectionRange(caret, caret);
    }
  }
  /* Who goes to another place of the form by keyboard stays there. */
  let title = "";
  new MutationObserver(() => {
    hold();
    /* A slider of Dash has no name of its own. */
    document.querySelectorAll("[role=slider]:not([aria-labelledby])").forEach((each) => {
      const of = each.closest("[id]");
      if (of) each.setAttribute("aria-labelledby", of.id.replace(/-.*/, "") + "-name");
    });
    const now = document.getElementById("level-title");
    if (!now || now.textContent === title) return;
    const first = title === "";
    title = now.textContent;
    if (!first && (!document.activeElement || document.activeElement === document.body)) now.focus();
  }).observe(document.documentElement, { childList: true, subtree: true, characterData: true });
  document.documentElement.lang = "en";
})();
